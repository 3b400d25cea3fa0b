// Short messages between MPI threads beside the operations themselves: "I am waiting in this one",
// "this is how far I am", "the group is over". Private to comm/mpi; MPI thread only.
#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "capstan/comm/op.h"

namespace capstan::comm {

struct Note {
  enum class Kind : std::int32_t { waiting, here, abort };
  Kind kind = Kind::waiting;
  std::int32_t group = 0;
  std::int32_t from = 0;          // rank in the group
  std::int64_t number = 0;        // waiting: the operation; here: the last collective issued
  OpFacts facts;                  // of that operation
  std::array<char, 1024> text{};  // abort: the reason, ended by 0
};

class MpiNotes {
 public:
  explicit MpiNotes(MPI_Comm comm);

  void send(const Note& note, int world_rank);
  // True and filled when one has come.
  bool receive(Note& note);
  // Drops what has been sent; true when nothing is left under way.
  bool flushed();
  // Withdraws the posted receive; before MPI_Finalize.
  void close();

 private:
  struct Sent {
    std::unique_ptr<Note> note;
    MPI_Request request;
  };
  void post_receive();

  MPI_Comm comm_;
  Note incoming_;
  MPI_Request receive_ = MPI_REQUEST_NULL;
  std::vector<Sent> sent_;  // to a dead peer it may never end
};

}  // namespace capstan::comm
