#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "base/thread/mutex.h"

namespace shoal::base {

// A bounded queue with many producers and one consumer. Thread-safe. After Close() producers are
// refused and the consumer drains what is left.
template <typename T>
class Mailbox {
 public:
  explicit Mailbox(size_t capacity) : capacity_(capacity) {}

  // Returns false, leaving `item` untouched, when the box is full or closed. Never blocks.
  bool TryPush(T&& item) {
    MutexLock lock(&mutex_);
    if (closed_ || items_.size() >= capacity_) return false;
    items_.push_back(std::move(item));
    not_empty_.Signal();
    return true;
  }

  // Blocks until an item comes, or returns nullopt once the box is closed and empty.
  std::optional<T> Pop() {
    MutexLock lock(&mutex_);
    while (items_.empty() && !closed_) not_empty_.Wait(&mutex_);
    return TakeFront();
  }

  // Returns nullopt at once when nothing is there.
  std::optional<T> TryPop() {
    MutexLock lock(&mutex_);
    return TakeFront();
  }

  void Close() {
    MutexLock lock(&mutex_);
    closed_ = true;
    not_empty_.SignalAll();
  }

  size_t size() const {
    MutexLock lock(&mutex_);
    return items_.size();
  }

 private:
  std::optional<T> TakeFront() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

  const size_t capacity_;
  mutable Mutex mutex_;
  CondVar not_empty_;
  std::deque<T> items_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace shoal::base
