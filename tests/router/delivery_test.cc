#include "router/delivery.h"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace shoal::router {
namespace {

// Records the ids of its events; the first blocks until Open().
class GatedSink final : public SequenceSink {
 public:
  void OnAdmission(const absl::Status& status) override { admissions.push_back(status.ok()); }
  void OnEvent(const Event& event) override {
    base::MutexLock lock(&mutex_);
    while (!is_open_) changed_.Wait(&mutex_);
    ids.push_back(event.request_id);
  }
  void Open() {
    base::MutexLock lock(&mutex_);
    is_open_ = true;
    changed_.SignalAll();
  }

  std::vector<bool> admissions;
  std::vector<uint64_t> ids;

 private:
  base::Mutex mutex_;
  base::CondVar changed_;
  bool is_open_ ABSL_GUARDED_BY(mutex_) = false;
};

Delivery::Item MakeItem(std::shared_ptr<SequenceSink> sink, uint64_t id) {
  Event event;
  event.request_id = id;
  return {std::move(sink), std::move(event)};
}

TEST(DeliveryTest, BringsEverythingInOrderBeforeItStops) {
  auto sink = std::make_shared<GatedSink>();
  sink->Open();
  Delivery delivery;
  std::vector<Delivery::Item> items;
  items.push_back({sink, absl::OkStatus()});
  for (uint64_t id = 0; id < 1000; ++id) {
    items.push_back(MakeItem(sink, id));
    if (id % 7 == 0) delivery.Post(&items);
  }
  delivery.Post(&items);
  EXPECT_TRUE(items.empty());
  delivery.Stop();
  EXPECT_EQ(sink->admissions, std::vector<bool>{true});
  ASSERT_EQ(sink->ids.size(), 1000u);
  for (uint64_t id = 0; id < 1000; ++id) EXPECT_EQ(sink->ids[id], id);
}

TEST(DeliveryTest, LetsGoOfASinkAfterItsLastEvent) {
  auto sink = std::make_shared<GatedSink>();
  sink->Open();
  Delivery delivery;
  std::vector<Delivery::Item> items;
  items.push_back(MakeItem(sink, 1));
  delivery.Post(&items);
  delivery.Stop();
  EXPECT_EQ(sink.use_count(), 1);
}

TEST(DeliveryTest, RecordsABatchAsOfTheStepItCameOf) {
  auto sink = std::make_shared<GatedSink>();
  sink->Open();
  Delivery delivery;
  std::atomic<bool> is_recorded = false;
  auto spans = std::async(std::launch::async, [&] {
    auto recorded = delivery.recorder()->Record(1, 10, absl::Minutes(1));
    is_recorded = true;
    return recorded;
  });
  std::vector<Delivery::Item> items;
  while (!is_recorded) {
    items.push_back(MakeItem(sink, 1));
    delivery.Post(&items, 77);
  }
  const auto recorded = spans.get();
  ASSERT_TRUE(recorded.ok()) << recorded.status();
  ASSERT_EQ(recorded->size(), 1u);
  EXPECT_EQ(recorded->front().step, 77u);
  EXPECT_GE(recorded->front().end_ns, recorded->front().begin_ns);
  delivery.Stop();
}

TEST(DeliveryTest, APosterFarAheadWaits) {
  auto sink = std::make_shared<GatedSink>();
  Delivery delivery;
  std::vector<Delivery::Item> items;
  items.push_back(MakeItem(sink, 0));
  delivery.Post(&items);
  auto poster = std::async(std::launch::async, [&] {
    std::vector<Delivery::Item> many;
    for (int round = 0; round < 2; ++round) {
      for (size_t i = 0; i < Delivery::kMaxPending; ++i) many.push_back(MakeItem(sink, 1));
      delivery.Post(&many);
    }
  });
  EXPECT_EQ(poster.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout)
      << "the second round found room while the sink took nothing";
  sink->Open();
  poster.wait();
  delivery.Stop();
  EXPECT_EQ(sink->ids.size(), 2 * Delivery::kMaxPending + 1);
}

}  // namespace
}  // namespace shoal::router
