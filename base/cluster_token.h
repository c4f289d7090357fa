#pragma once

#include <cstdlib>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"

// The secret that a router and its ranks share. Abstract unix sockets have no permissions and TCP
// ports neither: without it whoever reaches a rank may read its model and make it compute.

namespace shoal::base {

// In the environment, which other users cannot read; arguments they can. Unset: no secret.
inline constexpr char kClusterTokenVariable[] = "SHOAL_CLUSTER_TOKEN";
// In the metadata of every call to a rank.
inline constexpr char kClusterTokenKey[] = "shoal-cluster-token";

inline std::string ClusterToken() {
  const char* token = std::getenv(kClusterTokenVariable);
  return token == nullptr ? "" : token;
}

// What metadata can carry: printable ASCII without spaces.
inline bool IsValidToken(absl::string_view token) {
  for (const char c : token) {
    if (!absl::ascii_isgraph(static_cast<unsigned char>(c))) return false;
  }
  return true;
}

// In a time that tells nothing of where they differ.
inline bool EqualTokens(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace shoal::base
