#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/thread/mutex.h"
#include "router/engine.h"
#include "tests/router/test_model.h"

namespace shoal::router {

// An engine that the test plays: it takes what is submitted and generates what it is told.
class PuppetEngine final : public Engine {
 public:
  explicit PuppetEngine(std::shared_ptr<const ServedModel> model = MakeTestModel())
      : model_(std::move(model)) {}

  // --- The puppeteer's side. ---

  void SetModel(std::shared_ptr<const ServedModel> model);
  void SetReadiness(absl::Status readiness);
  // What becomes of the next `times` submissions; later ones are admitted.
  void SetAdmission(absl::Status admission, int times = 1);

  // Waits for submission `index` (from 0); returns its sequences.
  std::vector<Request> WaitForSubmission(size_t index);
  // Waits until `count` sequences have been cancelled, and returns their ids.
  std::vector<uint64_t> WaitForCancels(size_t count);
  size_t num_cancels() const;
  std::vector<uint64_t> finished() const;
  size_t num_submissions() const;

  // Of sequence `id`. The text comes as one token a byte.
  void Generate(uint64_t id, const std::string& text);
  void GenerateTokens(uint64_t id, std::vector<uint32_t> ids);
  void EndAtToken(uint64_t id, uint32_t token = kEos);
  void EndAtLength(uint64_t id);
  void Fail(uint64_t id, const absl::Status& status, FinishReason reason = FinishReason::kError);

  // --- Engine ---

  std::shared_ptr<const ServedModel> model() const override;
  absl::Status Readiness() const override;
  absl::Status Admission() const override { return Readiness(); }
  uint64_t AllocateIds(uint32_t count) override;
  void Submit(std::vector<Request> sequences, std::shared_ptr<SequenceSink> sink) override;
  void Cancel(uint64_t id, absl::string_view reason) override;
  void Finish(uint64_t id) override;
  EngineStatus status() const override;
  // Of one process with one span, of step `num_steps`. A trace of more than 10 steps waits until it
  // is abandoned.
  uint64_t TraceSteps(uint32_t num_steps, absl::Duration timeout, TraceDone done) override;
  void AbandonTrace(uint64_t id) override;
  EngineStatus* mutable_status() { return &status_; }

 private:
  struct Submission {
    std::vector<Request> sequences;
    std::shared_ptr<SequenceSink> sink;
  };
  void Emit(uint64_t id, Event event);

  mutable base::Mutex mutex_;
  base::CondVar changed_;
  std::shared_ptr<const ServedModel> model_ ABSL_GUARDED_BY(mutex_);
  absl::Status readiness_ ABSL_GUARDED_BY(mutex_);
  absl::Status admission_ ABSL_GUARDED_BY(mutex_);
  int num_admissions_left_ ABSL_GUARDED_BY(mutex_) = 0;  // that admission_ is for
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 100;
  std::vector<Submission> submissions_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> cancelled_ ABSL_GUARDED_BY(mutex_);
  TraceDone trace_done_ ABSL_GUARDED_BY(mutex_);  // of the trace that waits
  std::vector<uint64_t> finished_ ABSL_GUARDED_BY(mutex_);
  EngineStatus status_;
};

}  // namespace shoal::router
