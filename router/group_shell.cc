#include "router/group_shell.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "glog/logging.h"
#include "router/plan_codec.h"

namespace shoal::router {
namespace {

// After these the ranks that have not answered yet are mentioned, and warned of.
constexpr absl::Duration kQuietStart = absl::Seconds(2);
constexpr absl::Duration kPatientStart = absl::Seconds(10);
// Busy machines answer late.
constexpr absl::Duration kMinProbeTimeout = absl::Seconds(1);
constexpr absl::Duration kMaxProbeTimeout = absl::Seconds(5);

}  // namespace

GroupShell::GroupShell(GroupShellOptions options, std::unique_ptr<HistoryRecorder> recorder)
    : options_(std::move(options)),
      control_({.group = options_.group,
                .scheduler = options_.scheduler,
                .inter_token_target = options_.inter_token_target},
               std::move(recorder)),
      start_(options_.clock()),
      tracer_(options_.addresses, options_.token, &recorder_, delivery_.recorder()),
      readiness_(absl::UnavailableError("the worker group is starting")),
      admission_(readiness_) {
  CHECK_EQ(options_.addresses.size(), control_.state().group().num_ranks());
  for (uint32_t rank = 0; rank < control_.state().group().num_ranks(); ++rank) {
    RankLink::Options link{.rank = rank,
                           .address = options_.addresses[rank],
                           .load = options_.load,
                           .owner_id = options_.owner_id,
                           .token = options_.token,
                           .take_over = options_.take_over,
                           .join_timeout = options_.group.join_timeout,
                           .probe_timeout = std::clamp(options_.group.min_step_timeout,
                                                       kMinProbeTimeout, kMaxProbeTimeout)};
    link.load.set_rank(rank);
    links_.push_back(std::make_unique<RankLink>(std::move(link), &loop_, [this](GroupEvent event) {
      group_events_.push_back(std::move(event));
    }));
  }
  {
    base::MutexLock lock(&mutex_);
    status_.tensor_parallel_size = options_.group.tensor_parallel_size;
    status_.pipeline_parallel_size = options_.group.pipeline_parallel_size;
  }
  thread_ = std::thread([this] { Run(); });
}

GroupShell::~GroupShell() { Stop(); }

void GroupShell::Stop() {
  tracer_.Stop();
  inbox_.Stop();
  loop_.Wake();
  if (thread_.joinable()) thread_.join();
}

// --- Called by other threads. ---

absl::Status GroupShell::WaitUntilReady(absl::Duration timeout) {
  const auto start = std::chrono::steady_clock::now();
  base::MutexLock lock(&mutex_);
  while (!was_ready_) {
    if (is_wait_over_) return absl::CancelledError("stopped before the worker group was ready");
    if (!start_failure_.ok()) return start_failure_;
    const absl::Duration left =
        timeout - absl::FromChrono(std::chrono::steady_clock::now() - start);
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(absl::StrCat("the worker group was not ready within ",
                                                      absl::FormatDuration(timeout), ": ",
                                                      readiness_.message()));
    }
    changed_.WaitFor(&mutex_, left);
  }
  return absl::OkStatus();
}

void GroupShell::AbandonWait() {
  base::MutexLock lock(&mutex_);
  is_wait_over_ = true;
  changed_.SignalAll();
}

std::shared_ptr<const ServedModel> GroupShell::model() const {
  base::MutexLock lock(&mutex_);
  return model_;
}

absl::Status GroupShell::Readiness() const {
  base::MutexLock lock(&mutex_);
  return readiness_;
}

absl::Status GroupShell::Admission() const {
  base::MutexLock lock(&mutex_);
  return admission_;
}

EngineStatus GroupShell::status() const {
  base::MutexLock lock(&mutex_);
  return status_;
}

void GroupShell::Submit(std::vector<Request> sequences, std::shared_ptr<SequenceSink> sink) {
  const absl::Status status = inbox_.Add({.sequences = std::move(sequences), .sink = sink});
  if (status.ok()) {
    loop_.Wake();
  } else {
    sink->OnAdmission(status);
  }
}

void GroupShell::Cancel(uint64_t id, absl::string_view reason) {
  inbox_.Add({.id = id, .is_cancel = true, .reason = std::string(reason)});
  loop_.Wake();
}

void GroupShell::Finish(uint64_t id) {
  inbox_.Add({.id = id, .is_cancel = false, .reason = ""});
  loop_.Wake();
}

// --- The thread. ---

void GroupShell::Run() {
  control_.Start(options_.clock());
  CarryOut();
  while (true) {
    loop_.RunFor(control_.state().NextDeadline() - options_.clock());
    ShellInbox::Contents contents = inbox_.Take();
    const bool stops = contents.stops;
    HandleInbox(std::move(contents));
    control_.OnTimer(options_.clock());
    CarryOut();
    NoteGroupState();
    HandleGroupEvents();
    if (stops) break;
    PlanNextSteps();
    CheckFatal();
    Publish();
    delivery_.Post(&outgoing_, committed_step_);
    control_.Flush();
  }
  ShutDown();
}

void GroupShell::HandleInbox(ShellInbox::Contents contents) {
  for (ShellInbox::Submission& submission : contents.submissions) {
    HandleSubmission(std::move(submission));
  }
  for (const ShellInbox::Ending& ending : contents.endings) {
    if (ending.is_cancel) {
      control_.Cancel(options_.clock(), ending.id, ending.reason);
      CarryOut();
    } else {
      control_.Finish(options_.clock(), ending.id);
      num_finished_ += sinks_.erase(ending.id);
    }
  }
}

void GroupShell::HandleSubmission(ShellInbox::Submission submission) {
  std::vector<uint64_t> ids;
  for (const Request& request : submission.sequences) ids.push_back(request.id);
  const absl::Status status = control_.Submit(options_.clock(), std::move(submission.sequences));
  if (status.ok()) {
    for (const uint64_t id : ids) sinks_.emplace(id, submission.sink);
  } else {
    ++num_rejected_;
  }
  outgoing_.push_back({std::move(submission.sink), status});
}

void GroupShell::HandleGroupEvents() {
  while (!group_events_.empty()) {
    const GroupEvent event = std::move(group_events_.front());
    group_events_.pop_front();
    HandleGroupEvent(event);
  }
  LogNewFailure();
}

void GroupShell::HandleGroupEvent(const GroupEvent& event) {
  const uint64_t num_steps = control_.state().counters().num_steps;
  const int64_t begin_ns = base::UnixNanos();
  control_.OnGroupEvent(options_.clock(), event);
  if (control_.state().counters().num_steps > num_steps) {
    const SentPlan plan = sent_plans_.front();
    sent_plans_.pop_front();
    committed_step_ = plan.step;
    const base::RecordedStep recorded(&recorder_, plan.step);
    recorder_.Add(StepTracer::kPlan, plan.begin_ns, plan.made_ns);
    recorder_.Add(StepTracer::kSend, plan.made_ns, plan.sent_ns);
    recorder_.Add(StepTracer::kInFlight, plan.sent_ns, begin_ns, plan.batch);
    recorder_.Add(StepTracer::kCommit, begin_ns, base::UnixNanos());
  }
  CarryOut();
  NoteGroupState();
}

// The group may have been lost by the last call, or be ready.
void GroupShell::NoteGroupState() {
  const Group& group = control_.state().group();
  if (group.num_losses() != num_losses_) {
    LOG(WARNING) << "the worker group is lost";
    num_losses_ = group.num_losses();
    sent_plans_.clear();
  }
  if (group.state() != Group::State::kReady || group.epoch() == ready_epoch_) return;
  LOG(INFO) << "the worker group is ready, epoch " << group.epoch();
  ready_epoch_ = group.epoch();
  if (model() == nullptr && fatal_.ok()) fatal_ = MakeModel();
}

// Attempts to come back may fail for long, each in the same way: that is said once. Ranks that
// start with the router answer a little later, which is no failure yet.
void GroupShell::LogNewFailure() {
  const absl::Status& failure = control_.state().group().last_failure();
  const absl::Duration age = options_.clock() - start_;
  const bool is_awaited = control_.state().scheduler() == nullptr && absl::IsUnavailable(failure);
  if (is_awaited && age < kQuietStart) return;
  const bool is_warning = !is_awaited || age >= kPatientStart;
  if (failure == logged_failure_ && is_warning == logged_as_warning_) return;
  logged_failure_ = failure;
  logged_as_warning_ = is_warning;
  if (failure.ok()) return;
  if (is_warning) {
    LOG(WARNING) << "the worker group: " << failure.message();
  } else {
    LOG(INFO) << "waiting for the worker group: " << failure.message();
  }
}

void GroupShell::CarryOut() {
  for (const ControlAction& action : control_.TakeActions()) {
    std::visit([this](const auto& concrete) { Perform(concrete); }, action);
  }
  QueueEvents(control_.TakeEvents());
}

void GroupShell::Perform(const ProbeRank& action) {
  links_[action.rank]->Probe(/*wants_description=*/action.rank == 0);
}

void GroupShell::Perform(const JoinRank& action) {
  if (rendezvous_epoch_ != action.epoch) {
    rendezvous_epoch_ = action.epoch;
    rendezvous_ = absl::StrFormat("shoal-%016x%016x", options_.random(), options_.random());
  }
  // The ranks of a stage meet each other, and so do those of all stages that have the same shard.
  const uint32_t tp = options_.group.tensor_parallel_size;
  links_[action.rank]->Join(action.epoch, absl::StrCat(rendezvous_, "-", action.rank / tp),
                            absl::StrCat(rendezvous_, "-p", action.rank % tp));
}

void GroupShell::Perform(const OpenStream& action) {
  links_[action.rank]->OpenStream(action.epoch);
}

void GroupShell::Perform(const SendStep& action) {
  SentPlan sent{.step = action.plan.step,
                .begin_ns = plan_begin_ns_,
                .made_ns = base::UnixNanos(),
                .sent_ns = 0,
                .batch = {.num_sequences = static_cast<uint32_t>(action.plan.rows.size())}};
  for (const base::StepRow& row : action.plan.rows) sent.batch.num_tokens += row.num_tokens;
  ToProto(action.plan, {.owner_id = options_.owner_id, .counter = action.epoch}, &plan_message_);
  const grpc::ByteBuffer bytes = SerializePlan(plan_message_);
  for (const auto& link : links_) link->Send(bytes);
  sent.sent_ns = base::UnixNanos();
  sent_plans_.push_back(sent);
}

void GroupShell::Perform(const AbortRank& action) {
  links_[action.rank]->Abort(action.epoch,
                             std::string(control_.state().group().last_failure().message()));
}

void GroupShell::Perform(const FailRequests& action) { LOG(ERROR) << action.status.message(); }

void GroupShell::Perform(const ReplaceRank& action) {
  const RankStatus& rank = links_[action.rank]->status();
  if (rank.pid == 0) return;  // never seen: an address where nobody is, told by LogNewFailure
  LOG(ERROR) << "rank " << action.rank << " (" << rank.worker_id << ", process " << rank.pid
             << ") hangs: it is to be replaced";
  options_.on_hung_rank(action.rank, rank.pid);
}

void GroupShell::PlanNextSteps() {
  while (true) {
    plan_begin_ns_ = base::UnixNanos();
    if (!control_.Plan(options_.clock())) return;
    CarryOut();
  }
}

absl::Status GroupShell::MakeModel() {
  const SchedulerOptions& limits = control_.state().scheduler()->options();
  const RankInfo& identity = control_.state().group().identity();
  CHECK_NOTNULL(links_[0]->description());
  absl::StatusOr<std::shared_ptr<const ServedModel>> model =
      MakeServedModel(*links_[0]->description(), {.name = options_.model_name,
                                                  .numerics_id = identity.numerics_id,
                                                  .load_time = options_.clock(),
                                                  .max_seq_len = limits.max_seq_len});
  if (!model.ok()) return model.status();
  LOG(INFO) << "serving " << (*model)->name << ": context " << limits.max_seq_len << ", "
            << limits.num_blocks << " KV blocks of " << limits.block_size << " tokens, batches of "
            << limits.max_batch_seqs << " sequences and " << limits.max_batch_tokens
            << " tokens, numerics " << identity.numerics_id;
  base::MutexLock lock(&mutex_);
  model_ = *std::move(model);
  status_.num_blocks = limits.num_blocks;
  return absl::OkStatus();
}

void GroupShell::QueueEvents(std::vector<Event> events) {
  for (Event& event : events) {
    const auto it = sinks_.find(event.request_id);
    if (it == sinks_.end()) continue;
    const bool is_last = event.kind == Event::Kind::kFinished;
    std::shared_ptr<SequenceSink> sink = is_last ? std::move(it->second) : it->second;
    outgoing_.push_back({std::move(sink), std::move(event)});
    if (!is_last) continue;
    sinks_.erase(it);
    ++num_finished_;
  }
}

// An error at the start that trying again will not cure.
void GroupShell::CheckFatal() {
  if (control_.state().scheduler() != nullptr || !fatal_.ok()) return;
  for (const auto& link : links_) {
    if (!link->configuration_error().ok()) fatal_ = link->configuration_error();
  }
  // Ranks that do not fit each other.
  if (control_.state().group().last_failure().code() == absl::StatusCode::kFailedPrecondition) {
    fatal_ = control_.state().group().last_failure();
  }
}

void GroupShell::Publish() {
  absl::Status readiness;
  if (!fatal_.ok()) {
    readiness = absl::UnavailableError(fatal_.message());
  } else if (control_.state().group().state() != Group::State::kReady) {
    readiness = absl::UnavailableError(
        absl::StrCat("the worker group is not ready: ",
                     control_.state().group().last_failure().ok()
                         ? "its ranks are starting"
                         : control_.state().group().last_failure().message()));
  } else if (control_.state().scheduler()->is_stalled()) {
    readiness = absl::UnavailableError("requests wait, and no step has finished for a while");
  }
  const Scheduler* const scheduler = control_.state().scheduler();
  const bool may_hope = fatal_.ok() && scheduler != nullptr && !scheduler->is_stalled() &&
                        control_.state().group().accepts_requests();
  bool has_changed = false;
  {
    base::MutexLock lock(&mutex_);
    status_.epoch = control_.state().group().epoch();
    status_.num_steps = control_.state().counters().num_steps;
    status_.num_prompt_tokens = control_.state().counters().num_prompt_tokens;
    status_.num_generated_tokens = control_.state().counters().num_generated_tokens;
    status_.step_time = control_.state().counters().step_time;
    status_.prediction_error = control_.state().counters().prediction_error;
    status_.num_finished = num_finished_;
    status_.num_rejected = num_rejected_;
    if (control_.state().scheduler() != nullptr)
      status_.scheduler = control_.state().scheduler()->stats();
    status_.ranks.resize(links_.size());
    for (size_t i = 0; i < links_.size(); ++i) status_.ranks[i] = links_[i]->status();
    has_changed = readiness.ok() != readiness_.ok();
    readiness_ = readiness;
    admission_ = may_hope ? absl::OkStatus() : readiness;
    if (readiness.ok() && !was_ready_) was_ready_ = true;
    start_failure_ = fatal_;
    if (has_changed || !fatal_.ok()) changed_.SignalAll();
  }
  if (has_changed) options_.on_readiness(readiness.ok());
}

void GroupShell::ShutDown() {
  control_.FailAll(options_.clock(), absl::UnavailableError("the router is shutting down"));
  CarryOut();
  control_.Flush();
  delivery_.Post(&outgoing_);
  for (const auto& link : links_) link->CancelAll();
  const auto is_pending = [](const auto& link) { return link->num_pending() > 0; };
  while (std::any_of(links_.begin(), links_.end(), is_pending)) {
    loop_.RunFor(absl::InfiniteDuration());
  }
  delivery_.Stop();
  base::MutexLock lock(&mutex_);
  is_wait_over_ = true;
  readiness_ = absl::UnavailableError("the router is shutting down");
  admission_ = readiness_;
  changed_.SignalAll();
}

}  // namespace shoal::router
