#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/thread/mutex.h"
#include "grpcpp/grpcpp.h"
#include "shoal/v1/admin.grpc.pb.h"
#include "shoal/v1/inference.grpc.pb.h"

namespace shoal::cli {

// A router that answers as a test tells it, in this process, on a port of its own. It keeps what it
// was asked. Thread-safe.
class FakeRouter {
 public:
  FakeRouter();
  ~FakeRouter();

  const std::string& address() const { return address_; }

  // --- What the next calls get. Set before the call.
  // Pieces of text; each becomes a message with one token. Then `status`, or, if `hangs`, nothing
  // until the client cancels.
  void SetStream(std::vector<std::string> pieces, grpc::Status status = grpc::Status::OK,
                 bool hangs = false);
  // Of the last message of the next streams, whose text they end.
  void SetEnd(v1::FinishReason reason, v1::Usage usage, v1::Timings timings);
  // Tokens of a conversation: this many for each of its messages.
  void SetTokensPerMessage(uint32_t count);
  void SetWorkers(std::vector<v1::Worker> workers);
  // Of every unary call.
  void SetStatus(grpc::Status status);
  void SetServing(const std::string& service, bool serving);

  // --- What was asked.
  std::vector<v1::GenerateRequest> generate_requests();
  v1::TokenizeRequest tokenize_request();
  v1::DetokenizeRequest detokenize_request();
  v1::CancelRequestRequest cancel_request();
  void WaitForLists(int count);  // of requests
  // Waits for the first message of a stream to be written, and for a client's cancellation.
  void WaitForStream();
  void WaitForCancel();

 private:
  class Inference;
  class Admin;
  class Stream;

  base::Mutex mutex_;
  base::CondVar changed_;
  std::vector<std::string> pieces_ ABSL_GUARDED_BY(mutex_);
  grpc::Status stream_status_ ABSL_GUARDED_BY(mutex_);
  bool hangs_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::GenerateRequest> generate_requests_ ABSL_GUARDED_BY(mutex_);
  v1::TokenizeRequest tokenize_request_ ABSL_GUARDED_BY(mutex_);
  v1::DetokenizeRequest detokenize_request_ ABSL_GUARDED_BY(mutex_);
  v1::CancelRequestRequest cancel_request_ ABSL_GUARDED_BY(mutex_);
  v1::GenerateStreamResponse end_ ABSL_GUARDED_BY(mutex_);  // without deltas: none
  uint32_t tokens_per_message_ ABSL_GUARDED_BY(mutex_) = 1;
  std::vector<v1::Worker> workers_ ABSL_GUARDED_BY(mutex_);
  int num_lists_ ABSL_GUARDED_BY(mutex_) = 0;
  int num_written_ ABSL_GUARDED_BY(mutex_) = 0;
  int num_cancelled_ ABSL_GUARDED_BY(mutex_) = 0;

  std::unique_ptr<Inference> inference_;
  std::unique_ptr<Admin> admin_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace shoal::cli
