#include "capstan/monitor/event_file.h"

#include <bit>
#include <cstdint>
#include <type_traits>

#include <fmt/format.h>
#include <unistd.h>

#include "capstan/monitor/crc32c.h"
#include "capstan/monitor/environment.h"
#include "capstan/monitor/written_file.h"

namespace capstan::monitor {
namespace {

// Wire types of protobuf.
enum class Wire { varint = 0, fixed64 = 1, text = 2, fixed32 = 5 };

template <typename Number>
void put_little_endian(std::string& to, Number number) {
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    to.push_back(static_cast<char>(number & 0xFF));
    number = static_cast<Number>(number >> 8);
  }
}

void put_varint(std::string& to, std::uint64_t number) {
  for (; number >= 0x80; number >>= 7) to.push_back(static_cast<char>((number & 0x7F) | 0x80));
  to.push_back(static_cast<char>(number));
}

void put_key(std::string& to, int field, Wire wire) {
  put_varint(to, static_cast<std::uint64_t>(field * 8 + static_cast<int>(wire)));
}

void put_text(std::string& to, int field, std::string_view text) {
  put_key(to, field, Wire::text);
  put_varint(to, text.size());
  to += text;
}

std::string message_at(double time_s) {
  std::string message;
  put_key(message, 1, Wire::fixed64);
  put_little_endian(message, std::bit_cast<std::uint64_t>(time_s));
  return message;
}

std::string message_of(const Event& event) {
  std::string value;
  put_text(value, 1, event.name);
  put_key(value, 2, Wire::fixed32);
  put_little_endian(value, std::bit_cast<std::uint32_t>(static_cast<float>(event.value)));
  std::string summary;
  put_text(summary, 1, value);
  std::string message = message_at(now_s());
  put_key(message, 2, Wire::varint);
  put_varint(message, static_cast<std::uint64_t>(event.samples));
  put_text(message, 5, summary);
  return message;
}

std::filesystem::path path_in(const std::filesystem::path& folder) {
  make_folder(folder);
  return folder / fmt::format("events.out.tfevents.{}.{}.{}.capstan",
                              static_cast<std::int64_t>(now_s()), host_name(), getpid());
}

}  // namespace

EventFile::EventFile(const std::filesystem::path& folder)
    : path_(path_in(folder)), file_(path_, std::ios::binary | std::ios::app) {
  std::string version = message_at(now_s());
  put_text(version, 3, "brain.Event:2");
  add_record(version);
  file_ << std::flush;
  check_written(file_, path_);
}

void EventFile::add_record(std::string_view message) {
  std::string length;
  put_little_endian(length, static_cast<std::uint64_t>(message.size()));
  std::string record = length;
  put_little_endian(record, masked_crc32c(length));
  record += message;
  put_little_endian(record, masked_crc32c(message));
  file_.write(record.data(), static_cast<std::streamsize>(record.size()));
}

void EventFile::write(const std::vector<Event>& events) {
  for (const Event& event : events) add_record(message_of(event));
  file_ << std::flush;
  check_written(file_, path_);
}

}  // namespace capstan::monitor
