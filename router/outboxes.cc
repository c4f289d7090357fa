#include "router/outboxes.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace shoal::router {
namespace {

absl::Time SteadyNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace

Outboxes::Outbox::~Outbox() {
  base::MutexLock lock(&owner_->mutex_);
  owner_->Account(this, 0, 0);
  if (is_writing_) --owner_->num_writing_;
  owner_->outboxes_.erase(position_);
}

void Outboxes::Outbox::SetPending(size_t bytes) {
  base::MutexLock lock(&owner_->mutex_);
  owner_->Account(this, bytes, written_bytes_);
}

void Outboxes::Outbox::BeginWrite(size_t bytes) {
  base::MutexLock lock(&owner_->mutex_);
  CHECK(!is_writing_) << "one write at a time";
  is_writing_ = true;
  write_start_ = SteadyNow();
  ++owner_->num_writing_;
  if (owner_->sleeps_) owner_->changed_.Signal();
  owner_->Account(this, pending_bytes_, bytes);
}

void Outboxes::Outbox::EndWrite() {
  base::MutexLock lock(&owner_->mutex_);
  if (!is_writing_) return;
  is_writing_ = false;
  --owner_->num_writing_;
  owner_->Account(this, pending_bytes_, 0);
}

Outboxes::Outboxes(const Options& options) : options_(options), thread_([this] { Run(); }) {}

Outboxes::~Outboxes() {
  {
    base::MutexLock lock(&mutex_);
    CHECK(outboxes_.empty());
    stops_ = true;
    changed_.Signal();
  }
  thread_.join();
}

std::shared_ptr<Outboxes::Outbox> Outboxes::Open(EndCall end) {
  auto outbox = std::make_shared<Outbox>(this, std::move(end));
  base::MutexLock lock(&mutex_);
  outbox->position_ = outboxes_.insert(outboxes_.end(), outbox.get());
  return outbox;
}

size_t Outboxes::num_bytes() const {
  base::MutexLock lock(&mutex_);
  return num_bytes_;
}

void Outboxes::Account(Outbox* outbox, size_t pending, size_t written) {
  num_bytes_ -= outbox->bytes();
  if (outbox->is_ended_) num_ending_bytes_ -= outbox->bytes();
  outbox->pending_bytes_ = pending;
  outbox->written_bytes_ = written;
  num_bytes_ += outbox->bytes();
  if (outbox->is_ended_) num_ending_bytes_ += outbox->bytes();
  if (is_full()) changed_.Signal();
}

bool Outboxes::is_full() const { return num_bytes_ - num_ending_bytes_ > options_.max_bytes; }

void Outboxes::PickSlow(std::vector<Victim>* victims) {
  const absl::Time now = SteadyNow();
  for (Outbox* outbox : outboxes_) {
    if (!outbox->is_writing_ || outbox->is_ended_) continue;
    if (now - outbox->write_start_ < options_.max_write_time) continue;
    outbox->is_ended_ = true;
    num_ending_bytes_ += outbox->bytes();
    victims->push_back(
        {outbox->end_, absl::ResourceExhaustedError(absl::StrCat(
                           "the client has not read a message of ", outbox->written_bytes_,
                           " bytes for ", absl::FormatDuration(options_.max_write_time),
                           ", the longest that one may wait: read faster"))});
  }
}

void Outboxes::PickLargest(std::vector<Victim>* victims) {
  while (is_full()) {
    Outbox* largest = nullptr;
    for (Outbox* outbox : outboxes_) {
      if (outbox->is_ended_) continue;
      if (largest == nullptr || outbox->bytes() > largest->bytes()) largest = outbox;
    }
    CHECK(largest != nullptr);
    largest->is_ended_ = true;
    num_ending_bytes_ += largest->bytes();
    victims->push_back(
        {largest->end_,
         absl::ResourceExhaustedError(absl::StrCat(
             "the client reads slower than tokens come: ", largest->bytes(),
             " bytes wait for it, more than for any other, and all calls together "
             "hold the limit of ",
             options_.max_bytes, "; read faster, or ask for fewer choices or logprobs"))});
  }
}

std::vector<Outboxes::Victim> Outboxes::PickVictims() {
  std::vector<Victim> victims;
  PickSlow(&victims);
  PickLargest(&victims);
  return victims;
}

void Outboxes::Run() {
  // A write is ended at most this much too late.
  const absl::Duration period =
      std::min(absl::Seconds(5), std::max(options_.max_write_time / 4, absl::Milliseconds(1)));
  while (true) {
    std::vector<Victim> victims;
    {
      base::MutexLock lock(&mutex_);
      if (num_writing_ == 0) {
        sleeps_ = true;
        while (num_writing_ == 0 && !is_full() && !stops_) changed_.Wait(&mutex_);
        sleeps_ = false;
      } else if (!is_full() && !stops_) {
        changed_.WaitFor(&mutex_, period);
      }
      if (stops_) return;
      victims = PickVictims();
    }
    for (const Victim& victim : victims) victim.end(victim.why);
  }
}

}  // namespace shoal::router
