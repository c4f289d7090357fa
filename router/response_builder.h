#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "model/text/stream_decoder.h"
#include "router/control/request.h"
#include "router/frontend.h"
#include "router/served_model.h"
#include "shoal/v1/inference.pb.h"

namespace shoal::router {

// Turns what happens to the sequences of one request, one a choice, into messages of
// GenerateStream. All that comes between two calls of Take is merged, into messages that hold not
// much more than kFullBytes, as a client limits what it receives. A choice's text, tokens and usage
// depend on its tokens alone, not on how they were grouped:
//   - the tokens up to and including the one that ended it (an end token, or the one whose text
//     completed a stop string) are returned as ids and counted in usage.completion_tokens; a
//     resumed stream counts the tokens that it was given, too, and returns only the new ones;
//   - the text of an end token is left out, that of a stop string or stop token unless
//     include_stop_in_output is set;
//   - a character that is incomplete at the end becomes one U+FFFD.
// Not thread-safe.
class ResponseBuilder {
 public:
  // `model` and `request` must outlive the builder. A resumed stream's choice may be done from the
  // start: its tokens had reached an end that the client did not hear of.
  ResponseBuilder(const ServedModel* model, const ValidRequest* request);

  static constexpr size_t kFullBytes = 1 << 20;  // of memory; less on the wire

  // A kTokens or kPromptLogprobs event of `choice`, or kFinished for another reason than an error.
  // Events of a choice that is done are ignored. Returns true when the event's text completed a
  // stop string: then the choice is done, and its sequence is to be ended.
  bool Add(uint32_t choice, const Event& event);

  bool is_done(uint32_t choice) const { return choices_[choice].is_done; }
  bool all_done() const { return num_done_ == choices_.size(); }
  bool has_started() const { return has_started_; }
  // Of all choices, those of a resumed stream included.
  uint32_t num_generated_tokens() const;

  // Something to send. The first message waits for the first event, which has the usage.
  bool has_pending() const {
    return (has_started_ || all_done()) && (!full_.empty() || pending_.deltas_size() > 0);
  }
  // About how much memory the pending messages take, and how much of it is of the prompt.
  size_t pending_bytes() const { return full_bytes_.total + pending_bytes_.total; }
  size_t pending_prompt_bytes() const { return full_bytes_.prompt + pending_bytes_.prompt; }

  // The next message; the last one, with usage and timings, if all choices are done and nothing
  // else is pending. REQUIRES: has_pending().
  v1::GenerateStreamResponse Take();

 private:
  struct Bytes {
    size_t total = 0;
    size_t prompt = 0;  // of total
  };
  struct FullMessage {
    v1::GenerateStreamResponse message;
    Bytes bytes;
  };
  struct Choice {
    text::StreamDecoder decoder;
    uint32_t num_tokens = 0;  // generated
    int delta = -1;           // index in the pending message; -1: none yet
    bool is_done = false;
  };

  void Resume(Choice* choice, uint32_t index);
  void AddEcho();
  void AddTokens(uint32_t index, const Event& event);
  void AddPromptLogprobs(const Event& event);
  void AddFinish(uint32_t index, const Outcome& outcome);
  // What comes next goes to a new message, if the pending one is full.
  void StartMessageIfFull();
  // The parts of a delta.
  v1::Choice* Delta(uint32_t index);
  void AddId(uint32_t index, uint32_t id, const PositionLogprobs* logprobs);
  void AddText(uint32_t index, const std::string& text);
  // Flushes the decoder, which may still find a stop string; that reason then wins.
  void EndChoice(uint32_t index, v1::FinishReason reason);
  // Returns false if `decoded` matched none.
  bool EndAtStopString(uint32_t index, const text::StreamDecoder::Delta& decoded);
  void FillLogprobs(const PositionLogprobs& logprobs, v1::PositionLogprobs* out);
  void NoteUsage(const Outcome& outcome);
  void FillUsage(v1::Usage* usage) const;
  void FillTimings(v1::Timings* timings) const;

  const ServedModel& model_;
  const ValidRequest& request_;
  std::vector<Choice> choices_;
  uint32_t num_done_ = 0;
  v1::GenerateStreamResponse pending_;
  Bytes pending_bytes_;
  std::deque<FullMessage> full_;  // before `pending_`
  Bytes full_bytes_;              // of all of them
  bool has_started_ = false;
  bool has_sent_ = false;  // the first message
  uint32_t num_cached_tokens_ = 0;
  // Since the arrival: the earliest of all choices, and the latest.
  absl::Duration admitted_ = absl::InfiniteDuration();
  absl::Duration first_token_ = absl::InfiniteDuration();
  absl::Duration finished_ = absl::ZeroDuration();
};

// Adds what a message of the stream brings to the answer of the unary call: Generate is the stream
// collected. Moves out of `message`.
void Collect(v1::GenerateStreamResponse* message, v1::GenerateResponse* response);

}  // namespace shoal::router
