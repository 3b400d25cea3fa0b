#include "capstan/launch/network.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"

namespace capstan::launch {
namespace {

[[noreturn]] void fail_port(int port, int error) {
  throw IoError({.what = port == 0 ? fmt::format("no free port: {}", std::strerror(error))
                                   : fmt::format("port {}: {}", port, std::strerror(error)),
                 .where = "--master_port",
                 .fix = "remove --master_port, and a free port is chosen"});
}

Fd bind_socket(int port, bool this_machine_only) {
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(this_machine_only ? INADDR_LOOPBACK : INADDR_ANY);
  if (!socket.is_open() ||
      setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    fail_port(port, errno);
  }
  return socket;
}

int bound_port(const Fd& socket) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

void tune(int fd) {
  const int yes = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  // A host that vanishes without closing its connections is noticed after about a minute.
  const int seconds = 15;
  const int probes = 4;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

std::optional<Fd> try_connect(const std::string& address_text, int port) {
  constexpr int kTimeoutMs = 5000;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (inet_pton(AF_INET, address_text.c_str(), &address.sin_addr) != 1) return {};
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) return {};
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno != EINPROGRESS) return {};
    pollfd polled{.fd = socket.get(), .events = POLLOUT, .revents = 0};
    if (::poll(&polled, 1, kTimeoutMs) != 1) return {};
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return {};
  }
  tune(socket.get());
  return socket;
}

}  // namespace

HeldPort::HeldPort() : socket_(bind_socket(0, false)), number_(bound_port(socket_)) {}

void check_port_is_free(int port) {
  const Fd socket = bind_socket(port, false);
  if (::listen(socket.get(), 1) != 0) fail_port(port, errno);
}

Listener::Listener(bool this_machine_only)
    : socket_(bind_socket(0, this_machine_only)), port_(bound_port(socket_)) {
  if (::listen(socket_.get(), SOMAXCONN) != 0) fail_port(port_, errno);
  fcntl(socket_.get(), F_SETFL, O_NONBLOCK);
}

std::optional<Fd> Listener::accept() {
  Fd socket(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.is_open()) return {};
  tune(socket.get());
  return socket;
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {"127.0.0.1"};
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    if ((entry->ifa_flags & IFF_UP) == 0 || (entry->ifa_flags & IFF_LOOPBACK) != 0) continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    const auto* address = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr);
    inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size());
    addresses.emplace_back(text.data());
  }
  freeifaddrs(list);
  addresses.emplace_back("127.0.0.1");
  return addresses;
}

Fd connect_to(const std::string& link) {
  const std::size_t colon = link.rfind(':');
  int port = 0;
  if (colon != std::string::npos) {
    std::from_chars(link.data() + colon + 1, link.data() + link.size(), port);
  }
  for (const std::string& address : split(link.substr(0, colon), ',')) {
    if (std::optional<Fd> socket = try_connect(address, port)) return *std::move(socket);
  }
  throw CommError({.what = "no answer from the launcher",
                   .where = "CAPSTAN_LINK=" + link,
                   .fix = "make sure that this host can reach the launcher's host over TCP (check "
                          "the firewall and the routes)"});
}

}  // namespace capstan::launch
