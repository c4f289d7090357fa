#include "cli/command_trace.h"

#include <errno.h>
#include <string.h>

#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/exit_code.h"
#include "cli/output.h"
#include "cli/trace_report.h"
#include "shoal/v1/admin.grpc.pb.h"

namespace shoal::cli {
namespace {

// What the answer may come after the trace has ended.
constexpr absl::Duration kGrace = absl::Seconds(10);

size_t NumSteps(const v1::ProcessTrace& trace) {
  std::set<uint64_t> steps;
  for (const v1::StepSpan& span : trace.spans()) steps.insert(span.step());
  return steps.size();
}

void PrintSummary(const v1::TraceStepsResponse& traces, std::ostream* out) {
  const TracedBatch batch = MedianBatch(traces.processes(0));
  *out << "median batch: sequences " << batch.num_sequences << ", tokens " << batch.num_tokens
       << "\n";
  Table table({"PROCESS", "SPAN", "CALLS A STEP", "MS A STEP", "SHARE"});
  for (const v1::ProcessTrace& trace : traces.processes()) {
    for (const TraceLine& line : Summarize(trace)) {
      table.AddRow({trace.process(), line.name, absl::StrFormat("%.4g", line.calls),
                    absl::StrFormat("%.3f", line.median_us / 1000),
                    line.share > 0 ? absl::StrFormat("%.1f%%", 100 * line.share) : ""});
    }
  }
  *out << table.ToString();
}

}  // namespace

int RunTrace(const Session& session, const TraceFlags& flags) {
  std::ofstream file;
  if (!flags.path.empty()) {  // before anything is recorded
    file.open(flags.path, std::ios::trunc);
    if (!file) {
      return ReportError(session, kExitRuntime, "FAILED_PRECONDITION",
                         absl::StrCat("cannot write ", flags.path, ": ", strerror(errno)));
    }
  }
  v1::TraceStepsRequest request;
  request.set_steps(flags.steps);
  const absl::Duration wait = absl::Seconds(flags.wait_s);
  request.mutable_timeout()->set_seconds(absl::ToInt64Seconds(wait));
  request.mutable_timeout()->set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(wait - absl::Floor(wait, absl::Seconds(1)))));
  v1::TraceStepsResponse traces;
  const int code = CallUnary<v1::AdminService>(
      session, session.admin, &v1::AdminService::Stub::TraceSteps, request, &traces, wait + kGrace);
  if (code != kExitOk) return code;
  const size_t num_steps = traces.processes_size() > 0 ? NumSteps(traces.processes(0)) : 0;
  if (num_steps < flags.steps) {
    *session.err << "(" << num_steps << " of " << flags.steps << " steps ran in "
                 << absl::FormatDuration(wait) << ")" << std::endl;
  }
  if (!flags.path.empty()) {
    file << ToChromeTrace(traces);
    file.close();
    if (!file) {
      return ReportError(session, kExitRuntime, "UNAVAILABLE",
                         absl::StrCat("cannot write ", flags.path, ": ", strerror(errno)));
    }
  }
  if (num_steps > 0) PrintSummary(traces, session.out);
  return kExitOk;
}

}  // namespace shoal::cli
