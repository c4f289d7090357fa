// Latency of AllGather between two ranks. `shm` has two processes, `local` two threads.
//
//   transport_bench [seconds a case]

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "parallel/local_transport.h"
#include "parallel/shm_transport.h"

namespace shoal::parallel {
namespace {

using Clock = std::chrono::steady_clock;

struct Case {
  size_t bytes;
  bool allow_spin;
  double seconds;
};

// Runs until rank 0 says that it is enough; returns the microseconds of every operation.
std::vector<double> Measure(Transport& transport, const Case& c) {
  std::vector<char> mine(c.bytes, 'x'), all(2 * c.bytes);
  std::vector<double> micros;
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                   std::chrono::duration<double>(c.seconds));
  while (true) {
    for (int i = 0; i < 100; ++i) {
      const Clock::time_point start = Clock::now();
      const absl::Status status = transport.AllGather(mine.data(), c.bytes, all.data());
      micros.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
      if (!status.ok()) {
        std::fprintf(stderr, "error: %s\n", status.ToString().c_str());
        std::exit(1);
      }
    }
    const char done = transport.rank() == 0 && Clock::now() >= end;
    char all_done[2];
    if (!transport.AllGather(&done, 1, all_done).ok() || all_done[0]) return micros;
  }
}

void Report(const char* name, const Case& c, std::vector<double> micros) {
  std::sort(micros.begin(), micros.end());
  const auto at = [&](double q) { return micros[static_cast<size_t>(q * (micros.size() - 1))]; };
  std::printf("%-6s %-7s %8zu B  %8zu ops  p50 %9.2f us  p99 %9.2f us\n", name,
              c.allow_spin ? "spin" : "futex", c.bytes, micros.size(), at(0.5), at(0.99));
  std::fflush(stdout);
}

void RunLocal(const Case& c) {
  auto group = NewLocalTransports({.size = 2, .allow_spin = c.allow_spin}).value();
  std::thread peer([&] { Measure(*group[1], c); });
  std::vector<double> micros = Measure(*group[0], c);
  peer.join();
  Report("local", c, std::move(micros));
}

void RunShm(const Case& c) {
  static int counter = 0;
  ShmOptions options;
  options.nonce = absl::StrCat("bench-", getpid(), "-", counter++);
  options.size = 2;
  options.allow_spin = c.allow_spin;
  const pid_t peer = fork();
  if (peer == 0) {
    options.rank = 1;
    Measure(*ConnectShm(options).value(), c);
    _exit(0);
  }
  std::vector<double> micros = Measure(*ConnectShm(options).value(), c);
  waitpid(peer, nullptr, 0);
  Report("shm", c, std::move(micros));
}

}  // namespace
}  // namespace shoal::parallel

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 1.0;
  for (const bool allow_spin : {true, false}) {
    for (const size_t bytes : {size_t{2} << 10, size_t{16} << 10, size_t{1} << 20}) {
      shoal::parallel::RunLocal({bytes, allow_spin, seconds});
      shoal::parallel::RunShm({bytes, allow_spin, seconds});
    }
  }
}
