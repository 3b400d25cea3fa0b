#include "capstan/checkpoint/deepspeed/archive_writer.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "capstan/checkpoint/deepspeed/pickle_writer.h"
#include "capstan/checkpoint/file_bytes.h"
#include "capstan/checkpoint/index.h"

namespace capstan::checkpoint {
namespace {

using CrcTable = std::array<std::array<std::uint32_t, 256>, 8>;

// Eight tables, so that eight bytes are taken at a time.
constexpr CrcTable make_crc_table() {
  CrcTable table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1U) != 0 ? crc >> 1U ^ 0xedb88320U : crc >> 1U;
    table[0][i] = crc;
  }
  for (std::size_t t = 1; t < 8; ++t) {
    for (std::size_t i = 0; i < 256; ++i) {
      table[t][i] = table[t - 1][i] >> 8U ^ table[0][table[t - 1][i] & 0xffU];
    }
  }
  return table;
}

constexpr CrcTable kCrcTable = make_crc_table();

std::uint32_t crc32(std::uint32_t crc, std::span<const std::byte> bytes) {
  crc = ~crc;
  while (bytes.size() >= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    word ^= crc;
    crc = 0;
    for (std::size_t i = 0; i < 8; ++i) crc ^= kCrcTable[7 - i][word >> (8 * i) & 0xffU];
    bytes = bytes.subspan(8);
  }
  for (const std::byte byte : bytes) {
    crc = crc >> 8U ^ kCrcTable[0][(crc ^ static_cast<std::uint32_t>(byte)) & 0xffU];
  }
  return ~crc;
}

template <typename Number>
void put(std::string& out, Number value) {
  char bytes[sizeof(Number)];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

struct Member {
  std::string name;
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  std::uint32_t crc = 0;

  // 64-bit fields everywhere: larger than needed by a few bytes, and one form for all sizes.
  std::string extra(bool with_offset) const {
    std::string text;
    put(text, std::uint16_t{1});
    put(text, static_cast<std::uint16_t>(with_offset ? 24 : 16));
    put(text, static_cast<std::uint64_t>(bytes));
    put(text, static_cast<std::uint64_t>(bytes));
    if (with_offset) put(text, static_cast<std::uint64_t>(offset));
    return text;
  }
  // What local and central headers have in common, from the version on.
  std::string facts() const {
    std::string text;
    put(text, std::uint16_t{45});
    put(text, std::uint16_t{0});           // flags
    put(text, std::uint16_t{0});           // stored
    put(text, std::uint32_t{0x00210000});  // the first day of 1980
    put(text, crc);
    put(text, std::uint32_t{0xffffffff});
    put(text, std::uint32_t{0xffffffff});
    put(text, static_cast<std::uint16_t>(name.size()));
    return text;
  }
};

// One zip file, member after member.
class ZipFile {
 public:
  explicit ZipFile(const std::filesystem::path& path)
      : file_(io::File::open(path, {.access = io::Access::create})) {}

  void add(const std::string& name, std::int64_t bytes, const Fill& fill) {
    Member member{name, at_, bytes, 0};
    const std::int64_t header = std::ssize(local_header(member));
    std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(bytes, kBlockBytes)));
    for (std::int64_t done = 0; done < bytes;) {
      const auto count = std::min(bytes - done, std::ssize(buffer));
      const std::span<std::byte> part(buffer.data(), static_cast<std::size_t>(count));
      fill(done, part);
      member.crc = crc32(member.crc, part);
      write_bytes(file_, at_ + header + done, part, calls_);
      done += count;
    }
    write(at_, local_header(member));  // again: the checksum is known
    at_ += header + bytes;
    members_.push_back(std::move(member));
  }
  void add(const std::string& name, const std::string& text) {
    add(name, std::ssize(text), [&text](std::int64_t begin, std::span<std::byte> into) {
      std::memcpy(into.data(), text.data() + begin, into.size());
    });
  }
  void finish() {
    std::string directory;
    for (const Member& member : members_) {
      put(directory, std::uint32_t{0x02014b50});
      put(directory, std::uint16_t{45});
      directory += member.facts();
      const std::string extra = member.extra(/*with_offset=*/true);
      put(directory, static_cast<std::uint16_t>(extra.size()));
      directory.append(10, '\0');  // comment, disk, attributes
      put(directory, std::uint32_t{0xffffffff});
      directory += member.name + extra;
    }
    const auto directory_bytes = static_cast<std::uint64_t>(directory.size());
    const auto begin = static_cast<std::uint64_t>(at_);
    const std::uint64_t end64 = begin + directory_bytes;
    put(directory, std::uint32_t{0x06064b50});
    put(directory, std::uint64_t{44});
    put(directory, std::uint16_t{45});
    put(directory, std::uint16_t{45});
    put(directory, std::uint64_t{0});  // disks
    put(directory, static_cast<std::uint64_t>(members_.size()));
    put(directory, static_cast<std::uint64_t>(members_.size()));
    put(directory, directory_bytes);
    put(directory, begin);
    put(directory, std::uint32_t{0x07064b50});
    put(directory, std::uint32_t{0});
    put(directory, end64);
    put(directory, std::uint32_t{1});
    put(directory, std::uint32_t{0x06054b50});
    put(directory, std::uint32_t{0});
    put(directory, std::uint32_t{0xffffffff});  // counts: see the 64-bit record
    put(directory, std::uint32_t{0xffffffff});
    put(directory, std::uint32_t{0xffffffff});
    put(directory, std::uint16_t{0});
    write(at_, directory);
    sync_file(file_, calls_);
  }

 private:
  static std::string local_header(const Member& member) {
    std::string text;
    put(text, std::uint32_t{0x04034b50});
    const std::string extra = member.extra(/*with_offset=*/false);
    text += member.facts();
    put(text, static_cast<std::uint16_t>(extra.size()));
    return text + member.name + extra;
  }
  void write(std::int64_t offset, const std::string& text) {
    write_bytes(file_, offset, std::as_bytes(std::span(text)), calls_);
  }

  io::File file_;
  io::DurableCalls calls_;
  std::int64_t at_ = 0;
  std::vector<Member> members_;
};

}  // namespace

PyRef ArchiveWriter::tensor(Element element, std::vector<std::int64_t> shape, Fill fill) {
  PyTensor made{
      .element = element, .storage = std::to_string(data_.size()), .shape = std::move(shape)};
  made.stride.resize(made.shape.size());
  std::int64_t step = 1;
  for (std::size_t i = made.shape.size(); i-- > 0;) {
    made.stride[i] = step;
    step *= made.shape[i];
  }
  data_.push_back({made.elems() * size_bytes(element), std::move(fill)});
  return py_tensor(std::move(made));
}

PyRef ArchiveWriter::scalar(float value) {
  return tensor(Element::f32, {}, [value](std::int64_t, std::span<std::byte> into) {
    std::memcpy(into.data(), &value, into.size());
  });
}

void ArchiveWriter::write(const std::filesystem::path& path, const PyValue& root) const {
  const std::string top = path.stem().string() + "/";
  ZipFile zip(path);
  zip.add(top + "data.pkl", write_pickle(root));
  zip.add(top + "byteorder", std::string("little"));
  for (std::size_t i = 0; i < data_.size(); ++i) {
    zip.add(top + "data/" + std::to_string(i), data_[i].bytes, data_[i].fill);
  }
  zip.add(top + "version", std::string("3\n"));
  zip.finish();
}

}  // namespace capstan::checkpoint
