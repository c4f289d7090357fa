// What a rank says of its steps.

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/rank_fixture.h"

namespace shoal::worker {
namespace {

using testing::HasSubstr;

TEST_F(RankServiceTest, ATraceHasWholeStepsInTheirOrder) {
  StartRanks(1);
  v1::TraceRequest request;
  request.set_steps(2);
  request.mutable_timeout()->set_seconds(60);
  v1::TraceResponse response;
  {
    grpc::ClientContext context;
    EXPECT_EQ(ranks_[0]->stub()->Trace(&context, request, &response).error_code(),
              grpc::StatusCode::FAILED_PRECONDITION);
  }
  LoadAndJoin("router", 1);
  PlanStream stream(ranks_[0].get());
  std::atomic<bool> has_trace = false;
  std::thread tracer([&] {
    grpc::ClientContext context;
    const grpc::Status status = ranks_[0]->stub()->Trace(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    has_trace = true;
  });
  v1::ExecuteResponse reply;
  for (uint64_t step = 1; !has_trace; ++step) {
    v1::StepPlan plan = PromptPlan("router", 1, step);
    if (step > 1) plan.add_ended_slots(0);
    ASSERT_TRUE(stream.Write(plan) && stream.Read(&reply));
  }
  tracer.join();
  const shoal::v1::ProcessTrace& trace = response.trace();
  EXPECT_EQ(trace.process(), "rank-0");
  std::map<uint64_t, std::vector<std::string>> names;  // [step]
  std::map<uint64_t, shoal::v1::StepSpan> wholes;      // [step]
  int64_t last_begin_ns = 0;
  for (const shoal::v1::StepSpan& span : trace.spans()) {
    names[span.step()].push_back(trace.span_names(static_cast<int>(span.name())));
    if (names[span.step()].back() == "step") wholes[span.step()] = span;
    EXPECT_GE(span.begin_ns(), last_begin_ns);
    last_begin_ns = span.begin_ns();
  }
  ASSERT_EQ(names.size(), 2u);
  EXPECT_EQ(names.rbegin()->first, names.begin()->first + 1);
  for (const auto& [step, spans] : names) {
    // Once each: "receive", "step", the program's ops, "sample", "reply".
    ASSERT_EQ(static_cast<int>(spans.size()), trace.span_names_size());
    EXPECT_EQ(spans[0], "receive");
    EXPECT_EQ(spans[1], "step");
    EXPECT_EQ(spans[spans.size() - 2], "sample");
    EXPECT_EQ(spans.back(), "reply");
  }
  for (const shoal::v1::StepSpan& span : trace.spans()) {
    const std::string& name = trace.span_names(static_cast<int>(span.name()));
    if (name == "receive" || name == "reply") continue;
    const shoal::v1::StepSpan& whole = wholes[span.step()];
    EXPECT_GE(span.begin_ns(), whole.begin_ns()) << name;
    EXPECT_LE(span.begin_ns() + span.duration_ns(), whole.begin_ns() + whole.duration_ns()) << name;
  }
}

TEST_F(RankServiceTest, OneTraceAtATimeAndNoneThatNobodyAwaits) {
  StartRanks(1);
  LoadAndJoin("router", 1);
  // Ends at once, unless it is refused.
  const auto probe = [&](uint32_t steps) {
    v1::TraceRequest request;
    request.set_steps(steps);
    v1::TraceResponse response;
    grpc::ClientContext context;
    return ranks_[0]->stub()->Trace(&context, request, &response).error_code();
  };
  EXPECT_EQ(probe(0), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(probe(1001), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(probe(1000), grpc::StatusCode::OK);
  std::atomic<grpc::ClientContext*> running = nullptr;
  std::thread patient([&] {
    v1::TraceRequest request;
    request.set_steps(1);
    request.mutable_timeout()->set_seconds(600);
    grpc::StatusCode code = grpc::StatusCode::FAILED_PRECONDITION;
    while (code == grpc::StatusCode::FAILED_PRECONDITION) {  // it met a probe
      grpc::ClientContext context;
      running = &context;
      v1::TraceResponse response;
      code = ranks_[0]->stub()->Trace(&context, request, &response).error_code();
    }
    EXPECT_EQ(code, grpc::StatusCode::CANCELLED);
  });
  while (probe(1) != grpc::StatusCode::FAILED_PRECONDITION) {
  }
  running.load()->TryCancel();
  patient.join();
  while (probe(1) != grpc::StatusCode::OK) {  // for 600 s, were it not for the cancel
  }
}

}  // namespace
}  // namespace shoal::worker
