// The few TCP sockets the launcher needs: a held free port, a listener for agents, a connection.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "capstan/launch/fd.h"

namespace capstan::launch {

// A free port, reserved until destruction: bound but not listening, with SO_REUSEADDR, so that rank
// 0's server (which sets it too, as TCPStore does) can take it over while nobody else is given it.
class HeldPort {
 public:
  HeldPort();  // throws IoError when there is none
  int number() const { return number_; }

 private:
  Fd socket_;
  int number_ = 0;
};

// Throws IoError unless `port` can be listened on here.
void check_port_is_free(int port);

// Accepts connections from other hosts too, unless `this_machine_only`.
class Listener {
 public:
  explicit Listener(bool this_machine_only);
  int fd() const { return socket_.get(); }
  int port() const { return port_; }
  std::optional<Fd> accept();  // non-blocking socket; nothing when nobody waits

 private:
  Fd socket_;
  int port_ = 0;
};

// IPv4 addresses of this machine, loopback last.
std::vector<std::string> own_addresses();

// Tries "addr,addr,…:port" in turn. The socket is non-blocking. Throws CommError when none answers.
Fd connect_to(const std::string& link);

}  // namespace capstan::launch
