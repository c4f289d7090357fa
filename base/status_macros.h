#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Early return on errors, for functions that return absl::Status or absl::StatusOr<T>.
//   SHOAL_RETURN_IF_ERROR(Load(path));
//   SHOAL_ASSIGN_OR_RETURN(GgufFile file, GgufFile::Open(path));

#define SHOAL_STATUS_CONCAT_INNER(a, b) a##b
#define SHOAL_STATUS_CONCAT(a, b) SHOAL_STATUS_CONCAT_INNER(a, b)

#define SHOAL_RETURN_IF_ERROR(expr)                     \
  do {                                                  \
    if (absl::Status status_ = (expr); !status_.ok()) { \
      return status_;                                   \
    }                                                   \
  } while (false)

#define SHOAL_ASSIGN_OR_RETURN(lhs, expr) \
  SHOAL_ASSIGN_OR_RETURN_IMPL(SHOAL_STATUS_CONCAT(status_or_, __LINE__), lhs, expr)

#define SHOAL_ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                                \
  if (!result.ok()) {                                  \
    return std::move(result).status();                 \
  }                                                    \
  lhs = std::move(result).value()
