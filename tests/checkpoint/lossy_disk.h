// A disk that forgets what was not synced when the power goes: bytes without fsync, names without
// fsync of their folder.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <fcntl.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "capstan/checkpoint/disk.h"

namespace capstan::checkpoint {

// Counts operations; at number `last` the power goes. Operations before it are carried out, syncs
// only noted.
class LossyDisk final : public io::DurableCalls {
 public:
  static constexpr int kPowerOff = 77;

  LossyDisk(const std::filesystem::path& root, int last) : root_(root), last_(last) {
    remember_names(root);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
      if (entry.is_directory()) remember_names(entry.path());
    }
  }

  ssize_t pwrite(int fd, std::span<const std::byte> bytes, std::int64_t offset) override {
    count();
    note_write(fd, offset, std::ssize(bytes));
    return io::DurableCalls::pwrite(fd, bytes, offset);
  }
  int fsync(int fd) override {
    count();
    const std::lock_guard lock(mutex_);
    const std::filesystem::path path = path_of(fd);
    unsynced_.erase(inode(path));
    if (!std::filesystem::is_directory(path)) return 0;
    remember_names(path);
    std::erase_if(renames_, [&](const Rename& each) { return each.to.parent_path() == path; });
    return 0;
  }
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    count();
    const std::lock_guard lock(mutex_);
    Rename noted{from, to, root_ / (".old" + std::to_string(renames_.size()))};
    if (std::filesystem::is_regular_file(to)) std::filesystem::copy_file(to, noted.old);
    renames_.push_back(noted);
    return io::DurableCalls::rename(from, to);
  }
  void note_write(int fd, std::int64_t offset, std::int64_t bytes) {
    const std::lock_guard lock(mutex_);
    unsynced_[inode(path_of(fd))].push_back({offset, bytes});
  }
  void count() {
    const std::lock_guard lock(mutex_);
    if (++counted_ > last_) cut_power(kPowerOff);
  }
  // Forgets what was not synced and ends the process.
  [[noreturn]] void cut_power(int exit_code) {
    for (auto each = renames_.rbegin(); each != renames_.rend(); ++each) {
      std::filesystem::rename(each->to, each->from);
      if (std::filesystem::exists(each->old)) std::filesystem::rename(each->old, each->to);
    }
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root_)) {
      paths.push_back(entry.path());
    }
    for (const std::filesystem::path& path : paths) {
      if (std::filesystem::is_regular_file(path)) forget_bytes(path);
    }
    for (const std::filesystem::path& path : paths) {
      const auto names = names_.find(inode(path.parent_path()));
      const bool durable =
          names != names_.end() && names->second.contains(path.filename().string());
      if (!durable) std::filesystem::remove_all(path);
    }
    ::_exit(exit_code);
  }

 private:
  struct Rename {
    std::filesystem::path from, to, old;
  };

  static std::filesystem::path path_of(int fd) {
    return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd));
  }
  static ino_t inode(const std::filesystem::path& path) {
    struct stat facts{};
    ::stat(path.c_str(), &facts);
    return facts.st_ino;
  }
  void remember_names(const std::filesystem::path& folder) {
    std::set<std::string>& names = names_[inode(folder)];
    names.clear();
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      names.insert(entry.path().filename().string());
    }
  }
  void forget_bytes(const std::filesystem::path& path) {
    const auto writes = unsynced_.find(inode(path));
    if (writes == unsynced_.end()) return;
    const int fd = ::open(path.c_str(), O_WRONLY);
    for (const auto& [offset, bytes] : writes->second) {
      const std::string zeros(static_cast<std::size_t>(bytes), '\0');
      if (::pwrite(fd, zeros.data(), zeros.size(), offset) < 0) ::_exit(1);
    }
    ::close(fd);
  }
  std::filesystem::path root_;
  int last_;
  int counted_ = 0;
  std::mutex mutex_;
  std::map<ino_t, std::vector<std::pair<std::int64_t, std::int64_t>>> unsynced_;
  std::map<ino_t, std::set<std::string>> names_;  // that survive, by folder
  std::vector<Rename> renames_;                   // not yet durable
};

// Tells the disk of every write that goes through the ring.
class NotingQueue final : public io::RawQueue {
 public:
  NotingQueue(std::unique_ptr<io::RawQueue> inner, LossyDisk& disk)
      : inner_(std::move(inner)), disk_(disk) {}
  int depth() const override { return inner_->depth(); }
  io::Submitted submit(std::span<const io::RawOp> ops) override {
    for (const io::RawOp& op : ops) {
      disk_.count();
      if (op.kind == io::OpKind::write) disk_.note_write(op.fd, op.offset, op.bytes);
    }
    return inner_->submit(ops);
  }
  std::int64_t wait(std::span<io::RawDone> out) override { return inner_->wait(out); }

 private:
  std::unique_ptr<io::RawQueue> inner_;
  LossyDisk& disk_;
};

inline Disk disk_over(LossyDisk& lossy) {
  return {lossy, [&lossy](const io::Options& options) {
            io::OpenedQueue opened = io::open_queue(options);
            opened.queue = std::make_unique<NotingQueue>(std::move(opened.queue), lossy);
            return opened;
          }};
}

}  // namespace capstan::checkpoint
