#include "tests/simulation/forked.h"

#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "tests/simulation/simulation.h"

namespace shoal::simulation {
namespace {

constexpr absl::Duration kPlayLimit = absl::Seconds(60);

void LimitTime(absl::Duration limit) {
  itimerval timer = {};
  timer.it_value = absl::ToTimeval(limit);
  signal(SIGALRM, SIG_DFL);
  PCHECK(setitimer(ITIMER_REAL, &timer, nullptr) == 0);
}

pid_t Fork() {
  std::cout.flush();
  std::cerr.flush();
  const pid_t pid = fork();
  PCHECK(pid >= 0);
  return pid;
}

void AddLines(std::string* text, ForkedResult* result) {
  for (size_t end; (end = text->find('\n')) != std::string::npos; text->erase(0, end + 1)) {
    result->lines.push_back(text->substr(0, end));
    if (result->lines.size() > ForkedResult::kMaxLines) result->lines.pop_front();
  }
}

// A worker's side of FindFailure, shared with its parent.
struct Progress {
  uint64_t seed;  // being played
  Tally tally;
};

void PlaySeeds(uint64_t first, uint64_t end, int stride, Progress* progress) {
  for (uint64_t seed = first; seed < end; seed += stride) {
    progress->seed = seed;
    LimitTime(kPlayLimit);
    Simulation simulation(Scenario::Make(seed));
    if (!simulation.Run()) _exit(1);
    progress->tally += simulation.report().tally();
  }
  _exit(0);
}

}  // namespace

ForkedResult RunForked(absl::Duration limit, const std::function<bool()>& run) {
  int ends[2];
  PCHECK(pipe(ends) == 0);
  const pid_t pid = Fork();
  if (pid == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    LimitTime(limit);
    const bool ok = run();
    std::cerr.flush();
    _exit(ok ? 0 : 1);
  }
  close(ends[1]);
  ForkedResult result;
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(n));
    AddLines(&text, &result);
  }
  close(ends[0]);
  int status = 0;
  PCHECK(waitpid(pid, &status, 0) == pid);
  result.ok = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (WIFSIGNALED(status)) {
    text = WTERMSIG(status) == SIGALRM
               ? absl::StrCat("it did not end within ", absl::FormatDuration(limit), "\n")
               : absl::StrCat("it was ended by signal ", WTERMSIG(status), "\n");
    AddLines(&text, &result);
  }
  return result;
}

ForkedResult PlayForked(const Scenario& scenario) {
  return RunForked(kPlayLimit, [&scenario] {
    Simulation simulation(scenario, /*tells_history=*/true);
    if (simulation.Run()) return true;
    std::cerr << "violation: " << simulation.report().violation() << "\n";
    return false;
  });
}

std::optional<uint64_t> FindFailure(uint64_t first, uint64_t count, int num_processes,
                                    Tally* tally) {
  void* memory = mmap(nullptr, sizeof(Progress) * num_processes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  PCHECK(memory != MAP_FAILED);
  auto* const progress = static_cast<Progress*>(memory);
  std::vector<pid_t> workers;
  for (int i = 0; i < num_processes; ++i) {
    progress[i] = Progress();
    const pid_t pid = Fork();
    if (pid == 0) PlaySeeds(first + i, first + count, num_processes, &progress[i]);
    workers.push_back(pid);
  }
  std::optional<uint64_t> failed;
  for (int i = 0; i < num_processes; ++i) {
    if (failed.has_value()) kill(workers[i], SIGKILL);
    int status = 0;
    PCHECK(waitpid(workers[i], &status, 0) == workers[i]);
    const bool ok = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!ok && !failed.has_value()) failed = progress[i].seed;
    *tally += progress[i].tally;
  }
  PCHECK(munmap(memory, sizeof(Progress) * num_processes) == 0);
  return failed;
}

}  // namespace shoal::simulation
