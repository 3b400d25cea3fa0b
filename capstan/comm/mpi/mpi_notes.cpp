#include "capstan/comm/mpi/mpi_notes.h"

#include <type_traits>

namespace capstan::comm {

static_assert(std::is_trivially_copyable_v<Note>);  // it travels as bytes

MpiNotes::MpiNotes(MPI_Comm comm) : comm_(comm) { post_receive(); }

void MpiNotes::post_receive() {
  MPI_Irecv(&incoming_, sizeof(Note), MPI_BYTE, MPI_ANY_SOURCE, /*tag=*/0, comm_, &receive_);
}

void MpiNotes::send(const Note& note, int world_rank) {
  Sent sent{std::make_unique<Note>(note), MPI_REQUEST_NULL};
  MPI_Isend(sent.note.get(), sizeof(Note), MPI_BYTE, world_rank, /*tag=*/0, comm_, &sent.request);
  sent_.push_back(std::move(sent));
}

bool MpiNotes::receive(Note& note) {
  int done = 0;
  if (MPI_Test(&receive_, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done == 0) {
    return false;
  }
  note = incoming_;
  post_receive();
  return true;
}

void MpiNotes::close() {
  MPI_Cancel(&receive_);
  MPI_Wait(&receive_, MPI_STATUS_IGNORE);
}

bool MpiNotes::flushed() {
  std::erase_if(sent_, [](Sent& sent) {
    int done = 0;
    MPI_Test(&sent.request, &done, MPI_STATUS_IGNORE);
    return done != 0;
  });
  return sent_.empty();
}

}  // namespace capstan::comm
