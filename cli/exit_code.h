#pragma once

namespace shoal::cli {

// What shoalctl exits with. An RPC that failed gives kExitRpcBase plus its gRPC code (as grpcurl).
inline constexpr int kExitOk = 0;
inline constexpr int kExitRuntime = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitCannotConnect = 3;
inline constexpr int kExitUnhealthy = 4;
inline constexpr int kExitRpcBase = 64;
inline constexpr int kExitInterrupted = 130;

}  // namespace shoal::cli
