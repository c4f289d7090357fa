#include "cli/bench_client.h"

#include <memory>

#include "gtest/gtest.h"
#include "tests/cli/fake_router.h"

namespace shoal::cli {
namespace {

TEST(BenchClientTest, NobodyElseHoldsTheChannelAfterARun) {
  FakeRouter router;
  router.SetStream({"one"});
  for (int run = 0; run < 300; ++run) {
    auto channel = grpc::CreateChannel(router.address(), grpc::InsecureChannelCredentials());
    const auto stub = v1::InferenceService::NewStub(channel);
    BenchClient::Options options;
    options.num_requests = 2;
    options.make_request = [](uint32_t) { return v1::GenerateRequest(); };
    BenchClient client(stub.get(), options);
    client.RunClosedLoop(2);
    ASSERT_LE(channel.use_count(), 2) << "run " << run << ": this test's and the stub's";
    ASSERT_EQ(client.samples()[0].output_tokens, 1);
  }
}

}  // namespace
}  // namespace shoal::cli
