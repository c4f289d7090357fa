#include "kernels/cpu/cpu_backend.h"

#include <sched.h>

#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "glog/logging.h"
#include "kernels/cpu/attention_schedule.h"
#include "kernels/cpu/huge_memory.h"
#include "kernels/cpu/isa_table.h"
#include "kernels/cpu/packed_weight.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/quant/dequantize.h"

namespace shoal::kernels {
namespace {

using cpu::HugeMemory;
using cpu::IsaTable;
using cpu::Scratch;

constexpr int kMaxThreads = 1024;

// Below this many elementary operations an op is done sooner than other threads wake up.
constexpr int64_t kMinParallelWork = 1 << 14;

IsaTable TableOf(Isa isa) {
  switch (isa) {
    case Isa::kAmx: {
      IsaTable table = avx512::kTable;
      table.name = "cpu-amx";
      table.mat_mul = amx::MatMul;
      return table;
    }
    case Isa::kAvx512:
      return avx512::kTable;
    case Isa::kAvx2:
      return avx2::kTable;
    case Isa::kPortable:
      break;
  }
  return portable::kTable;
}

// (memcpy refuses null pointers, even for no bytes.)
void Copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

class CpuBuffer final : public Buffer {
 public:
  explicit CpuBuffer(HugeMemory memory) : memory_(std::move(memory)) {}
  void* data() const override { return memory_.data(); }
  size_t size_bytes() const override { return memory_.size_bytes(); }

 private:
  HugeMemory memory_;
};

class CpuBackend final : public Backend {
 public:
  CpuBackend(const IsaTable& table, int threads, std::vector<int> cpus)
      : table_(table), pool_(threads, std::move(cpus)), scratch_(threads) {}

  // REQUIRES of every backend before its first op: scratch for the ops that need no weight.
  absl::Status Init() {
    SHOAL_RETURN_IF_ERROR(attention_workspace_.Allocate(pool_.num_threads()));
    return GrowScratch(cpu::kAttentionScratchBytes);
  }

  absl::string_view name() const override { return table_.name; }
  absl::string_view numerics_id() const override { return "cpu-1"; }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes, absl::string_view what) override {
    SHOAL_ASSIGN_OR_RETURN(HugeMemory memory, HugeMemory::Allocate(bytes, what));
    return std::make_unique<CpuBuffer>(std::move(memory));
  }

  absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(const WeightSlice& slice) override {
    SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<PackedMatrix> matrix, cpu::PackWeight(slice, &pool_));
    const int64_t padded_cols = (matrix->cols() + 31) / 32 * 32;
    SHOAL_RETURN_IF_ERROR(GrowScratch(padded_cols * cpu::kChunkRows * cpu::kScratchBytesPerValue));
    return matrix;
  }

  void Upload(void* device, const void* host, size_t bytes) override { Copy(device, host, bytes); }
  void Download(void* host, const void* device, size_t bytes) override {
    Copy(host, device, bytes);
  }
  void Synchronize() override { pool_.EndStep(); }

  void Embed(const EmbedArgs& args) override {
    Split(args.rows, args.width, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const char* table = static_cast<const char*>(args.table);
        DequantizeRow(args.type, table + args.tokens[row] * args.row_bytes,
                      args.out + row * args.width, args.width);
      }
    });
  }

  void RmsNorm(const RmsNormArgs& args) override {
    Split(args.rows, args.groups * args.width,
          [&](int64_t begin, int64_t end) { table_.rms_norm(args, begin, end); });
  }

  void Quantize(const QuantizeArgs& args) override {
    Split(args.out.rows, args.out.width,
          [&](int64_t begin, int64_t end) { table_.quantize(args, begin, end); });
  }

  void MatMul(const MatMulArgs& args) override {
    int64_t tiles = 0;
    int64_t cols = 0;
    for (int32_t i = 0; i < args.num_segments; ++i) {
      const auto* weight = reinterpret_cast<const cpu::CpuWeight*>(args.segments[i]);
      tiles += weight->num_tiles;
      cols = weight->cols;
    }
    if (args.rows == 0) {
      return;
    }
    SplitWithThread(tiles, cols * args.rows, [&](int thread, int64_t begin, int64_t end) {
      table_.mat_mul(args, begin, end, ScratchOf(thread));
    });
  }

  void JoinAdd(const JoinAddArgs& args) override {
    DCHECK_LE(args.num_parts, kMaxLeaves);
    Split(args.rows, args.width * args.num_parts,
          [&](int64_t begin, int64_t end) { table_.join_add(args, begin, end); });
  }

  void Rope(const RopeArgs& args) override {
    Split(args.rows, static_cast<int64_t>(args.heads) * args.rope_dim,
          [&](int64_t begin, int64_t end) { table_.rope(args, begin, end); });
  }

  void KvStore(const KvStoreArgs& args) override {
    Split(args.layout.rows, int64_t{2} * args.pages.kv_heads * args.pages.head_dim,
          [&](int64_t begin, int64_t end) { table_.kv_store(args, begin, end); });
  }

  void Attention(const AttentionArgs& args) override {
    DCHECK_LE(args.pages.head_dim, cpu::kMaxHeadDim);
    if (args.layout.rows == 0) {
      return;
    }
    cpu::AttentionSchedule schedule(args, pool_.num_threads(), &attention_workspace_);
    const auto work = [&](int thread) { schedule.Run(table_, ScratchOf(thread)); };
    if (schedule.work() < kMinParallelWork) {
      pool_.RunHere(work);
    } else {
      pool_.Run(work);
    }
  }

  void SwiGlu(const SwiGluArgs& args) override {
    Split(args.rows * ((args.width + 31) / 32), 32 * 8,
          [&](int64_t begin, int64_t end) { table_.swiglu(args, begin, end); });
  }

  void GatherRows(const GatherRowsArgs& args) override {
    for (int64_t row = 0; row < args.rows; ++row) {
      std::memcpy(args.out + row * args.width, args.x + args.indices[row] * args.width,
                  args.width * sizeof(float));
    }
  }

 private:
  Scratch ScratchOf(int thread) const {
    const HugeMemory& memory = scratch_[thread];
    return {static_cast<uint8_t*>(memory.data()), static_cast<int64_t>(memory.size_bytes())};
  }

  absl::Status GrowScratch(int64_t bytes) {
    if (ScratchOf(0).bytes >= bytes) {
      return absl::OkStatus();
    }
    for (HugeMemory& memory : scratch_) {
      SHOAL_ASSIGN_OR_RETURN(memory, HugeMemory::Allocate(bytes, "a compute thread's scratch"));
    }
    return absl::OkStatus();
  }

  // work(thread, begin, end) over [0, count), cut evenly; on this thread alone when there is
  // little.
  template <class Work>
  void SplitWithThread(int64_t count, int64_t cost_of_one, const Work& work) {
    const int64_t threads = pool_.num_threads();
    if (threads == 1 || count <= 1 || count * cost_of_one < kMinParallelWork) {
      pool_.RunHere([&](int) { work(0, 0, count); });
      return;
    }
    pool_.Run([&](int thread) {
      work(thread, count * thread / threads, count * (thread + 1) / threads);
    });
  }

  template <class Work>
  void Split(int64_t count, int64_t cost_of_one, const Work& work) {
    SplitWithThread(count, cost_of_one, [&](int, int64_t begin, int64_t end) { work(begin, end); });
  }

  const IsaTable table_;
  cpu::ThreadPool pool_;
  std::vector<HugeMemory> scratch_;  // one a thread
  cpu::AttentionWorkspace attention_workspace_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> NewCpuBackend(const CpuOptions& options) {
  if (options.threads < 1 || options.threads > kMaxThreads) {
    return absl::InvalidArgumentError(absl::StrCat("the CPU backend takes 1 to ", kMaxThreads,
                                                   " threads, not ", options.threads));
  }
  cpu_set_t available;
  CPU_ZERO(&available);
  sched_getaffinity(0, sizeof(available), &available);
  for (const int cpu : options.cpus) {
    if (cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &available)) {
      return absl::InvalidArgumentError(absl::StrCat("CPU ", cpu, " is not one of the ",
                                                     CPU_COUNT(&available),
                                                     " CPUs this process may run on"));
    }
  }
  const Isa isa = options.isa.value_or(BestIsa());
  if (!IsaSupported(isa)) {
    return absl::FailedPreconditionError(absl::StrCat("this machine lacks the instruction set ",
                                                      IsaName(isa), "; it has up to ",
                                                      IsaName(BestIsa())));
  }
  auto backend = std::make_unique<CpuBackend>(TableOf(isa), options.threads, options.cpus);
  SHOAL_RETURN_IF_ERROR(backend->Init());
  return backend;
}

}  // namespace shoal::kernels
