// What every transport promises (parallel/transport.h), run over all of them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "parallel/local_transport.h"
#include "parallel/shm_transport.h"

namespace shoal::parallel {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<uint8_t>;
using Transports = std::vector<std::unique_ptr<Transport>>;

struct GroupOptions {
  int size = 2;
  absl::Duration op_timeout = absl::Seconds(60);
  size_t slot_bytes = 64 << 10;
  bool allow_spin = false;
};

std::string FreshNonce() {
  static std::atomic<int> counter{0};
  return absl::StrCat("test-", getpid(), "-", counter.fetch_add(1));
}

Transports MakeLocal(const GroupOptions& options) {
  return NewLocalTransports(
             {options.size, options.op_timeout, options.slot_bytes, options.allow_spin})
      .value();
}

Transports MakeShm(const GroupOptions& options) {
  ShmOptions shm;
  shm.nonce = FreshNonce();
  shm.size = options.size;
  shm.connect_timeout = absl::Seconds(30);
  shm.op_timeout = options.op_timeout;
  shm.slot_bytes = options.slot_bytes;
  shm.message_slot_bytes = options.slot_bytes;
  shm.allow_spin = options.allow_spin;
  Transports transports(options.size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.size; ++rank) {
    threads.emplace_back([&transports, shm, rank]() mutable {
      shm.rank = rank;
      transports[rank] = ConnectShm(shm).value();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return transports;
}

struct Kind {
  const char* name;
  Transports (*make)(const GroupOptions&);
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

// Runs `body` once for each rank, each on its own thread.
void OnEveryRank(const Transports& group, const std::function<void(Transport&)>& body) {
  std::vector<std::thread> threads;
  for (const auto& transport : group) {
    threads.emplace_back([&body, &transport] { body(*transport); });
  }
  for (std::thread& thread : threads) thread.join();
}

// The bytes that `rank` contributes to operation `op`: they differ by rank, place and operation.
Bytes Block(int rank, size_t bytes, int op = 0) {
  Bytes block(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    block[i] = static_cast<uint8_t>(i * 31 + (i >> 8) * 7 + rank * 101 + op * 13 + 1);
  }
  return block;
}

Bytes Concatenated(const std::vector<size_t>& sizes, int op = 0) {
  Bytes all;
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    const Bytes block = Block(static_cast<int>(rank), sizes[rank], op);
    all.insert(all.end(), block.begin(), block.end());
  }
  return all;
}

void WaitUntilWaitingFor(const Transport& transport, int peer) {
  while (transport.wait_info().waiting_for != peer) std::this_thread::yield();
}

class TransportContractTest : public ::testing::TestWithParam<Kind> {
 protected:
  Transports Make(const GroupOptions& options = {}) { return GetParam().make(options); }
};

TEST_P(TransportContractTest, KnowsItsNameAndPlace) {
  const Transports group = Make({.size = 3});
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(group[rank]->rank(), rank);
    EXPECT_EQ(group[rank]->size(), 3);
    EXPECT_EQ(std::string(group[rank]->name()), GetParam().name);
  }
}

TEST_P(TransportContractTest, GathersBlocksOfEverySizeInRankOrder) {
  for (const int size : {1, 2, 3, 8}) {
    const Transports group = Make({.size = size});
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4}, size_t{8} << 10, size_t{64} << 10,
                               (size_t{3} << 20) + 5}) {
      const Bytes expected = Concatenated(std::vector<size_t>(size, bytes));
      OnEveryRank(group, [&](Transport& transport) {
        Bytes all(bytes * size, 0xee);
        ASSERT_TRUE(
            transport.AllGather(expected.data() + transport.rank() * bytes, bytes, all.data())
                .ok());
        EXPECT_TRUE(all == expected) << bytes;
      });
    }
  }
}

TEST_P(TransportContractTest, GathersUnequalBlocks) {
  const Transports group = Make({.size = 4});
  const std::vector<size_t> sizes = {3, 0, 200001, 65536};
  OnEveryRank(group, [&](Transport& transport) {
    const Bytes mine = Block(transport.rank(), sizes[transport.rank()]);
    Bytes all(3 + 200001 + 65536);
    ASSERT_TRUE(transport.AllGatherV(mine.data(), sizes, all.data()).ok());
    EXPECT_TRUE(all == Concatenated(sizes));
  });
}

TEST_P(TransportContractTest, GathersInPlace) {
  const Transports group = Make({.size = 3});
  OnEveryRank(group, [&](Transport& transport) {
    Bytes all(3 * 100000);
    const Bytes mine = Block(transport.rank(), 100000);
    uint8_t* place = all.data() + transport.rank() * 100000;
    std::memcpy(place, mine.data(), mine.size());
    ASSERT_TRUE(transport.AllGather(place, 100000, all.data()).ok());
    EXPECT_TRUE(all == Concatenated({100000, 100000, 100000}));
  });
}

TEST_P(TransportContractTest, MessagesOfEverySizeArriveInOrderAroundARing) {
  const Transports group = Make({.size = 3});
  OnEveryRank(group, [&](Transport& transport) {
    const int next = (transport.rank() + 1) % 3, previous = (transport.rank() + 2) % 3;
    int op = 0;
    for (const size_t bytes :
         {size_t{0}, size_t{1}, size_t{4}, size_t{8} << 10, (size_t{3} << 20) + 5, size_t{2}}) {
      const Bytes mine = Block(transport.rank(), bytes, ++op);
      Bytes received(bytes);
      // One rank receives first: a ring of long Sends would wait for itself.
      absl::Status sent;
      if (transport.rank() != 0) sent = transport.Send(next, mine.data(), bytes);
      ASSERT_TRUE(transport.Receive(previous, received.data(), bytes).ok());
      if (transport.rank() == 0) sent = transport.Send(next, mine.data(), bytes);
      ASSERT_TRUE(sent.ok()) << sent;
      EXPECT_TRUE(received == Block(previous, bytes, op)) << bytes;
    }
  });
}

TEST_P(TransportContractTest, NobodyPassesABarrierBeforeAllCame) {
  const Transports group = Make({.size = 4});
  std::atomic<int> came{0};
  OnEveryRank(group, [&](Transport& transport) {
    for (int round = 1; round <= 200; ++round) {
      came.fetch_add(1);
      ASSERT_TRUE(transport.Barrier().ok());
      ASSERT_GE(came.load(), 4 * round);
    }
  });
}

// Random operations, the same on all ranks, with and without spinning, slots of one cache line.
TEST_P(TransportContractTest, RandomOperationsMoveTheRightBytes) {
  for (const bool allow_spin : {false, true}) {
    const Transports group = Make({.size = 3, .slot_bytes = 64, .allow_spin = allow_spin});
    OnEveryRank(group, [&](Transport& transport) {
      std::mt19937 random(17);
      for (int op = 0; op < 300; ++op) {
        const uint32_t choice = random() % 4;
        const std::vector<size_t> sizes = {random() % 300, random() % 300, random() % 300};
        const Bytes mine = Block(transport.rank(), sizes[transport.rank()], op);
        if (choice == 0) {
          ASSERT_TRUE(transport.Barrier().ok());
        } else if (choice == 1) {
          const int source = static_cast<int>(random() % 3), target = (source + 1) % 3;
          if (transport.rank() == source) {
            ASSERT_TRUE(transport.Send(target, mine.data(), mine.size()).ok());
          } else if (transport.rank() == target) {
            Bytes received(sizes[source]);
            ASSERT_TRUE(transport.Receive(source, received.data(), received.size()).ok());
            ASSERT_TRUE(received == Block(source, sizes[source], op));
          }
        } else {
          Bytes all(sizes[0] + sizes[1] + sizes[2]);
          ASSERT_TRUE(transport.AllGatherV(mine.data(), sizes, all.data()).ok());
          ASSERT_TRUE(all == Concatenated(sizes, op));
        }
      }
    });
  }
}

TEST_P(TransportContractTest, SizesThatDisagreeAreAnErrorOnEveryRank) {
  const Transports group = Make({.size = 3});
  OnEveryRank(group, [&](Transport& transport) {
    const size_t bytes = transport.rank() == 1 ? 200000 : 8;  // another number of pieces, too
    const Bytes mine = Block(transport.rank(), bytes);
    Bytes all(3 * bytes);
    const absl::Status status = transport.AllGather(mine.data(), bytes, all.data());
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_EQ(transport.Barrier(), status);
    EXPECT_EQ(transport.Send((transport.rank() + 1) % 3, mine.data(), 1), status);
  });
}

TEST_P(TransportContractTest, DifferentCollectivesAreAnErrorOnEveryRank) {
  const Transports group = Make({.size = 2});
  OnEveryRank(group, [&](Transport& transport) {
    uint8_t all[2];
    const absl::Status status =
        transport.rank() == 0 ? transport.Barrier() : transport.AllGather(all, 0, all);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  });
}

TEST_P(TransportContractTest, AMessageOfAnotherSizeIsAnErrorOnBothRanks) {
  const Transports group = Make({.size = 2});
  OnEveryRank(group, [&](Transport& transport) {
    uint8_t data[8] = {};
    if (transport.rank() == 0) {
      // The first Send may be over before the receiver looks; the next operation is not.
      absl::Status status = transport.Send(1, data, 8);
      if (status.ok()) status = transport.Barrier();
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    } else {
      const absl::Status status = transport.Receive(0, data, 4);
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("8 bytes"));
    }
  });
}

TEST_P(TransportContractTest, ASilentPeerIsAnErrorByTheDeadlineAndCostsNoCpu) {
  for (const bool allow_spin : {false, true}) {
    const Transports group =
        Make({.size = 2, .op_timeout = absl::Milliseconds(100), .allow_spin = allow_spin});
    timespec before, after;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
    const absl::Status status = group[0]->Barrier();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("waited 100ms for rank 1"));
    EXPECT_LT(absl::DurationFromTimespec(after) - absl::DurationFromTimespec(before),
              absl::Milliseconds(30));
    EXPECT_EQ(group[0]->Barrier(), status);
    EXPECT_EQ(group[1]->Barrier(), status);  // learns the reason
  }
}

TEST_P(TransportContractTest, AbortFromAnyThreadWakesEveryRank) {
  const Transports group = Make({.size = 4});
  const absl::Status why = absl::CancelledError("epoch 7 is over");
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {  // rank 3 never comes
    threads.emplace_back([&group, rank, &why] {
      uint8_t all[4];
      absl::Status status;
      if (rank == 0) status = group[rank]->Barrier();
      if (rank == 1) status = group[rank]->Receive(3, all, 4);
      if (rank == 2) status = group[rank]->Receive(0, all, 1);
      EXPECT_EQ(status, why);
      EXPECT_EQ(group[rank]->Barrier(), why);
    });
  }
  WaitUntilWaitingFor(*group[0], 1);
  WaitUntilWaitingFor(*group[1], 3);
  WaitUntilWaitingFor(*group[2], 0);
  group[3]->Abort(why);
  group[0]->Abort(absl::InternalError("only the first one counts"));
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(group[3]->Barrier(), why);
}

TEST_P(TransportContractTest, ASendWithoutRoomCanBeAborted) {
  const Transports group = Make({.size = 2});
  std::thread sender([&] {
    const Bytes data(1 << 20);
    EXPECT_EQ(group[0]->Send(1, data.data(), data.size()), absl::CancelledError("stop"));
  });
  WaitUntilWaitingFor(*group[0], 1);
  group[1]->Abort(absl::CancelledError("stop"));
  sender.join();
}

TEST_P(TransportContractTest, APeerThatLeavesWakesAWaiter) {
  Transports group = Make({.size = 3});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&group, rank] {
      const absl::Status status = group[rank]->Barrier();
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2 left"));
      EXPECT_EQ(group[rank]->Barrier(), status);
    });
  }
  WaitUntilWaitingFor(*group[0], 2);
  group[2].reset();
  for (std::thread& thread : threads) thread.join();
}

TEST_P(TransportContractTest, WhatAPeerSentBeforeItLeftIsDelivered) {
  Transports group = Make({.size = 2});
  const Bytes sent = Block(1, 1000);
  ASSERT_TRUE(group[1]->Send(0, sent.data(), sent.size()).ok());
  ASSERT_TRUE(group[1]->Send(0, sent.data(), 0).ok());
  group[1].reset();
  Bytes received(1000);
  ASSERT_TRUE(group[0]->Receive(1, received.data(), received.size()).ok());
  EXPECT_TRUE(received == sent);
  EXPECT_TRUE(group[0]->Receive(1, nullptr, 0).ok());
  EXPECT_EQ(group[0]->Receive(1, received.data(), 1).code(), absl::StatusCode::kUnavailable);
}

TEST_P(TransportContractTest, TheLastCollectiveBeforeAPeerLeavesIsComplete) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    Transports group = Make({.size = 3, .slot_bytes = 4096});
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&group, rank] {
        const Bytes mine = Block(rank, 10000);
        Bytes all(30000);
        ASSERT_TRUE(group[rank]->AllGather(mine.data(), 10000, all.data()).ok());
        group[rank].reset();
        EXPECT_TRUE(all == Concatenated({10000, 10000, 10000}));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_P(TransportContractTest, SendingToAPeerThatLeftIsAnError) {
  Transports group = Make({.size = 2});
  group[1].reset();
  uint8_t data = 0;
  EXPECT_EQ(group[0]->Send(1, &data, 1).code(), absl::StatusCode::kUnavailable);
}

TEST_P(TransportContractTest, WaitInfoCountsOperationsAndNamesTheAwaitedRank) {
  const Transports group = Make({.size = 2});
  EXPECT_EQ(group[0]->wait_info().operations, 0u);
  OnEveryRank(group, [](Transport& transport) { ASSERT_TRUE(transport.Barrier().ok()); });
  EXPECT_EQ(group[0]->wait_info().operations, 1u);
  EXPECT_EQ(group[0]->wait_info().waiting_for, -1);
  std::thread waiter([&] { EXPECT_TRUE(group[0]->Barrier().ok()); });
  WaitUntilWaitingFor(*group[0], 1);
  EXPECT_EQ(group[0]->wait_info().operations, 2u);
  EXPECT_TRUE(group[1]->Barrier().ok());
  waiter.join();
  EXPECT_EQ(group[0]->wait_info().waiting_for, -1);
}

INSTANTIATE_TEST_SUITE_P(All, TransportContractTest,
                         ::testing::Values(Kind{"local", MakeLocal}, Kind{"shm", MakeShm}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(LocalTransportTest, RefusesImpossibleOptions) {
  EXPECT_EQ(NewLocalTransports({.size = 0}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(NewLocalTransports({.size = 17}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(NewLocalTransports({.size = 2, .slot_bytes = 65}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace shoal::parallel
