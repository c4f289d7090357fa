// What the ledger calls a violation: a simulation is worth what this sees.

#include "tests/simulation/client_ledger.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::simulation {
namespace {

using router::Event;
using router::FinishReason;
using testing::HasSubstr;

constexpr uint64_t kId = 7;

Scenario TwoClients() {
  Scenario scenario;
  scenario.options.scheduler.aging_interval = absl::Seconds(1);
  for (uint32_t number = 1; number <= 2; ++number) {
    ClientPlan client;
    client.number = number;
    client.request.token_ids = {number, 2, 3};
    client.request.max_tokens = 4;
    client.request.sampling.seed = number;
    scenario.clients.push_back(client);
  }
  return scenario;
}

class ClientLedgerTest : public testing::Test {
 protected:
  ClientLedgerTest() { ledger_.OnAccepted(now_, &stream(), kId); }

  Stream& stream(uint32_t client = 1) { return *ledger_.of(client, 0); }
  void Commit(size_t count) { stream().num_committed += count; }
  void Tell(std::vector<uint32_t> tokens) {
    Event event;
    event.request_id = kId;
    event.token_ids = std::move(tokens);
    ledger_.OnEvent(now_, event, /*may_be_unavailable=*/false);
  }
  void Tell(FinishReason reason, absl::Status status = absl::OkStatus(),
            bool may_be_unavailable = false) {
    Event event;
    event.kind = Event::Kind::kFinished;
    event.request_id = kId;
    event.outcome.reason = reason;
    event.outcome.status = std::move(status);
    event.outcome.num_generated_tokens = static_cast<uint32_t>(stream().tokens.size());
    ledger_.OnEvent(now_, event, may_be_unavailable);
  }
  void TellAll() {
    Commit(4);
    Tell(stream().solo);
  }
  const std::string& violation() const { return report_.violation(); }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  const Scenario scenario_ = TwoClients();
  Report report_{/*tells_history=*/false};
  ClientLedger ledger_{&scenario_, &report_};
};

TEST_F(ClientLedgerTest, AnUndisturbedStreamIsFine) {
  TellAll();
  Tell(FinishReason::kLength);
  EXPECT_EQ(violation(), "");
  EXPECT_EQ(ledger_.num_live(), 0u);
}

TEST_F(ClientLedgerTest, AnotherToken) {
  Commit(1);
  Tell({stream().solo[0] + 1});
  EXPECT_THAT(violation(), HasSubstr("not those of an undisturbed run"));
}

TEST_F(ClientLedgerTest, ATokenTwice) {
  Commit(2);
  Tell({stream().solo[0], stream().solo[0]});
  EXPECT_THAT(violation(), HasSubstr("not those of an undisturbed run"));
}

TEST_F(ClientLedgerTest, ATokenBeforeItsCommit) {
  Tell({stream().solo[0]});
  EXPECT_THAT(violation(), HasSubstr("whose step not every rank has answered"));
}

TEST_F(ClientLedgerTest, AnEndBeforeTheLastToken) {
  Commit(1);
  Tell({stream().solo[0]});
  Tell(FinishReason::kLength);
  EXPECT_THAT(violation(), HasSubstr("ended too early"));
}

TEST_F(ClientLedgerTest, ASecondEnd) {
  TellAll();
  Tell(FinishReason::kLength);
  Tell(FinishReason::kLength);
  EXPECT_THAT(violation(), HasSubstr("has ended"));
}

TEST_F(ClientLedgerTest, NoEndAtAll) {
  TellAll();
  ledger_.CheckAllEnded();
  EXPECT_THAT(violation(), HasSubstr("never ended"));
}

TEST_F(ClientLedgerTest, ACancelByNobody) {
  Tell(FinishReason::kCancelled, absl::CancelledError("?"));
  EXPECT_THAT(violation(), HasSubstr("cancelled by nobody"));
}

TEST_F(ClientLedgerTest, ADeadlineThatIsPassedInSilence) {
  stream().deadline = now_;
  ledger_.CheckDeadlines(now_ + absl::Milliseconds(10));
  EXPECT_EQ(violation(), "");
  ledger_.CheckDeadlines(now_ + absl::Seconds(1));
  EXPECT_THAT(violation(), HasSubstr("deadline: passed 1s ago"));
}

TEST_F(ClientLedgerTest, UnavailableBeforeTheRecoveryTimeout) {
  Tell(FinishReason::kError, absl::UnavailableError("?"));
  EXPECT_THAT(violation(), HasSubstr("an error without cause"));
}

TEST_F(ClientLedgerTest, UnavailableAfterTheRecoveryTimeout) {
  Tell(FinishReason::kError, absl::UnavailableError("?"), /*may_be_unavailable=*/true);
  EXPECT_EQ(violation(), "");
}

TEST_F(ClientLedgerTest, InternalNeedsThreeLossesInARowTheLastOneAlone) {
  ledger_.OnAccepted(now_, &stream(2), kId + 1);
  for (int i = 0; i < 3; ++i) ledger_.OnLoss({&stream(1), &stream(2)});
  EXPECT_FALSE(stream().was_lost_alone);
  ledger_.OnLoss({&stream(1)});
  Tell(FinishReason::kError, absl::InternalError("?"));
  EXPECT_EQ(violation(), "");
}

TEST_F(ClientLedgerTest, InternalAfterTwoLosses) {
  ledger_.OnLoss({&stream(1)});
  ledger_.OnLoss({});
  ledger_.OnLoss({&stream(1)});
  ledger_.OnLoss({&stream(1)});
  EXPECT_EQ(stream().num_losses, 2);
  Tell(FinishReason::kError, absl::InternalError("?"));
  EXPECT_THAT(violation(), HasSubstr("an error without cause"));
}

TEST_F(ClientLedgerTest, ARequestThatOvertakesOneFromLongBefore) {
  ledger_.OnAccepted(now_ + absl::Seconds(2), &stream(2), kId + 1);
  ledger_.CheckOrder(stream(2));
  EXPECT_EQ(violation(), "") << "a higher priority may";
  ledger_.OnAccepted(now_ + absl::Seconds(4), &stream(2), kId + 2);
  ledger_.CheckOrder(stream(2));
  EXPECT_THAT(violation(), HasSubstr("overtaken by client 2, which came 4s later"));
}

TEST_F(ClientLedgerTest, ARefusalWithRoomInTheQueue) {
  ledger_.OnRefused(scenario_.clients[1], absl::ResourceExhaustedError("?"), true, 100000);
  ledger_.OnRefused(scenario_.clients[1], absl::UnavailableError("?"), false, 0);
  EXPECT_EQ(violation(), "");
  ledger_.OnRefused(scenario_.clients[1], absl::ResourceExhaustedError("?"), true, 3);
  EXPECT_THAT(violation(), HasSubstr("refusal: without cause"));
}

}  // namespace
}  // namespace shoal::simulation
