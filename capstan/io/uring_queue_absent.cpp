#include "capstan/base/error.h"
#include "capstan/io/uring_queue.h"

namespace capstan::io {

std::unique_ptr<RawQueue> make_uring_queue(int /*depth*/) {
  throw ConfigError({.what = "capstan was built without io_uring",
                     .where = "build option CAPSTAN_URING",
                     .fix = "apt-get install liburing-dev, then build with -DCAPSTAN_URING=ON"});
}

}  // namespace capstan::io
