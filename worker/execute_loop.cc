#include "worker/execute_loop.h"

#include <deque>
#include <string>

#include "glog/logging.h"

namespace shoal::worker {

// One Execute stream. Every operation that is started owns one event on the queue; the call deletes
// itself when it is finished and no event is outstanding.
class ExecuteLoop::Call {
 public:
  enum class Event { kAccepted, kRead, kWritten, kFinished };
  struct Tag {
    Call* call;
    Event event;
  };

  Call(ExecuteLoop* loop) : loop_(loop), stream_(&context_) {
    outstanding_ = 1;
    loop_->service_->RequestExecute(&context_, &stream_, loop_->queue_, loop_->queue_, &accepted_);
  }

  void OnEvent(Event event, bool ok) {
    --outstanding_;
    switch (event) {
      case Event::kAccepted:
        if (ok && !loop_->stopping_) {
          loop_->Accept();
          Begin();
        } else {
          finished_ = true;  // the server is shut down
        }
        break;
      case Event::kRead:
        if (ok && !loop_->stopping_) {
          RunPlan();
        } else {
          Finish(grpc::Status::OK);  // the router closed, or is gone
        }
        break;
      case Event::kWritten:
        writing_ = false;
        if (finishing_ || loop_->stopping_) {
          Finish(final_status_);
        } else if (ok) {
          StartWrite();
        } else {
          Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the router is gone"));
        }
        break;
      case Event::kFinished:
        break;
    }
    if (finished_ && outstanding_ == 0) {
      loop_->service_->StreamEnded(epoch_);
      delete this;
    }
  }

 private:
  void Begin() {
    if (const grpc::Status allowed = loop_->service_->CheckCaller(context_); !allowed.ok()) {
      Finish(allowed);
      return;
    }
    absl::StatusOr<std::string> epoch = loop_->service_->StreamOpened(context_);
    if (!epoch.ok()) {
      Finish(grpc::Status(static_cast<grpc::StatusCode>(epoch.status().code()),
                          std::string(epoch.status().message())));
      return;
    }
    epoch_ = *std::move(epoch);
    StartRead();
  }

  void StartRead() {
    ++outstanding_;
    stream_.Read(&request_, &read_);
  }

  void RunPlan() {
    if (finished_ || finishing_) return;
    const bool has_plan = request_.has_plan();
    if (has_plan) plan_.Swap(request_.mutable_plan());
    StartRead();
    if (!has_plan) {
      Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "a message without a plan"));
      return;
    }
    v1::ExecuteResponse& response = responses_.emplace_back();
    const absl::Status status = loop_->service_->RunStep(plan_, epoch_, &response);
    if (!status.ok()) {
      LOG(ERROR) << "step " << plan_.step() << " failed: " << status.message();
      responses_.pop_back();
      Finish(grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                          std::string(status.message())));
      return;
    }
    StartWrite();
  }

  void StartWrite() {
    if (writing_ || finishing_ || finished_ || responses_.empty()) return;
    sent_.Swap(&responses_.front());
    responses_.pop_front();
    writing_ = true;
    ++outstanding_;
    stream_.Write(sent_, &written_);
  }

  void Finish(const grpc::Status& status) {
    if (finished_) return;
    if (writing_) {  // Finish may not overlap a write: it follows it
      if (!finishing_) final_status_ = status;
      finishing_ = true;
      return;
    }
    finished_ = true;
    if (loop_->stopping_) return;
    ++outstanding_;
    stream_.Finish(status, &finish_);
  }

  ExecuteLoop* const loop_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<v1::ExecuteResponse, v1::ExecuteRequest> stream_;
  v1::ExecuteRequest request_;
  v1::StepPlan plan_;
  std::deque<v1::ExecuteResponse> responses_;  // of plans under way
  v1::ExecuteResponse sent_;
  std::string epoch_;  // empty: not opened
  int outstanding_ = 0;
  bool writing_ = false;
  bool finishing_ = false;  // Finish(final_status_) waits for the write
  bool finished_ = false;
  grpc::Status final_status_;
  Tag accepted_{this, Event::kAccepted};
  Tag read_{this, Event::kRead};
  Tag written_{this, Event::kWritten};
  Tag finish_{this, Event::kFinished};
};

ExecuteLoop::ExecuteLoop(RankService* service, grpc::ServerCompletionQueue* queue)
    : service_(service), queue_(queue) {}

ExecuteLoop::~ExecuteLoop() = default;

void ExecuteLoop::Accept() { new Call(this); }

// The queue is shut down by the loop itself, so that no operation can be started on it afterwards.
void ExecuteLoop::Shutdown() { shutdown_alarm_.Set(queue_, gpr_now(GPR_CLOCK_MONOTONIC), nullptr); }

void ExecuteLoop::Run() {
  Accept();
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) {
    if (tag == nullptr) {
      stopping_ = true;
      queue_->Shutdown();
      continue;
    }
    const auto* event = static_cast<Call::Tag*>(tag);
    event->call->OnEvent(event->event, ok);
  }
}

}  // namespace shoal::worker
