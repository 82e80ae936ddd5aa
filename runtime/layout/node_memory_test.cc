#include "runtime/layout/node_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/device/staged_communicator.h"
#include "runtime/device/testing/strict_device.h"
#include "runtime/engine/testing/test_job.h"
#include "runtime/job/job_spec.h"
#include "runtime/layout/cuda_memory.h"
#include "runtime/layout/rank_memory.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/model/config.h"
#include "tests/soak.h"

namespace megascale::layout {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Large enough that tensors outweigh the program.
job::v1::JobSpec LargerJob(int data, int pipeline, job::v1::Precision precision) {
  job::v1::JobSpec spec = engine::ToyJob(engine::WriteTestText("node_memory_text"), data, pipeline);
  spec.mutable_model()->set_hidden_size(384);
  spec.mutable_model()->set_intermediate_size(1536);
  spec.mutable_model()->set_max_position_embeddings(64);
  spec.mutable_train()->set_seq_length(64);
  spec.mutable_train()->set_steps(2);
  spec.mutable_train()->set_precision(precision);
  return spec;
}

// The most memory that this process ever had resident, of all kinds.
int64_t PeakBytes() {
  const std::string status = base::ReadFile("/proc/self/status", 1 << 16).value();
  long kibibytes = 0;
  std::sscanf(status.c_str() + status.find("VmHWM:"), "VmHWM: %ld", &kibibytes);
  return static_cast<int64_t>(kibibytes) << 10;
}

// Returns the resident bytes, each page counted once. PeakBytes counts a page as often as it is
// mapped, and peers, which are threads here, map each other's parameters and gradients.
int64_t BytesCountedOnce() {
  const std::string rollup = base::ReadFile("/proc/self/smaps_rollup", 1 << 16).value();
  long kibibytes = 0;
  std::sscanf(rollup.c_str() + rollup.find("Pss:"), "Pss: %ld", &kibibytes);
  return static_cast<int64_t>(kibibytes) << 10;
}

// Returns the bytes that the heap has handed out, touched or not.
int64_t HeapBytes() {
  const struct mallinfo2 heap = ::mallinfo2();
  return static_cast<int64_t>(heap.uordblks + heap.hblkhd);
}

struct Measured {
  int64_t peak = 0;
  int64_t heap = 0;          // after the last step
  int64_t counted_once = 0;  // after the last step
};

// Trains the job in a process of its own, all ranks as threads.
Measured MeasuredRun(const job::v1::JobSpec& spec, const std::vector<std::string>& nodes = {}) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    Measured measured;
    engine::RunOptions options(spec);
    options.nodes = nodes;
    options.after_step = [&measured] {
      measured.counted_once = BytesCountedOnce();
      measured.heap = HeapBytes();
    };
    engine::RunJob(options);
    measured.peak = PeakBytes();
    const bool told = ::write(ends[1], &measured, sizeof(measured)) == sizeof(measured);
    ::_exit(told && !::testing::Test::HasFailure() ? 0 : 1);
  }
  ::close(ends[1]);
  Measured measured;
  EXPECT_EQ(::read(ends[0], &measured, sizeof(measured)), static_cast<ssize_t>(sizeof(measured)));
  ::close(ends[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  return measured;
}

struct Case {
  const char* name;
  int data;
  int pipeline;
  job::v1::Precision precision;
  int vocab_size = 256;
  int virtual_stages = 1;
  int tensor = 1;
  int zero_stage = 1;
  int64_t bucket_size = 0;
  job::v1::PipelineSchedule schedule = job::v1::PIPELINE_SCHEDULE_1F1B;
  int kv_heads = 2;
  bool tied = false;
};

class ComputedMemory : public ::testing::TestWithParam<Case> {};

TEST_P(ComputedMemory, IsNeverLessThanARealRunTakesAndNotMuchMore) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer keeps freed memory, or a shadow of all memory";
#endif
  const auto& [name, data, pipeline, precision, vocab_size, virtual_stages, tensor, zero_stage,
               bucket_size, schedule, kv_heads, tied] = GetParam();
  job::v1::JobSpec spec = LargerJob(data, pipeline, precision);
  spec.mutable_model()->set_vocab_size(vocab_size);
  spec.mutable_model()->set_num_key_value_heads(kv_heads);
  spec.mutable_model()->set_tie_word_embeddings(tied);
  spec.mutable_parallel()->set_tensor_model_parallel_size(tensor);
  spec.mutable_parallel()->set_zero_stage(zero_stage);
  spec.mutable_parallel()->set_ddp_bucket_size(bucket_size);
  spec.mutable_parallel()->set_pipeline_schedule(schedule);
  if (data > 2) {
    spec.mutable_model()->set_num_hidden_layers(8);
    spec.mutable_train()->set_global_batch_size(16);
  }
  if (virtual_stages > 1) {
    spec.mutable_parallel()->set_virtual_pipeline_model_parallel_size(virtual_stages);
    spec.mutable_parallel()->set_pipeline_schedule(job::v1::PIPELINE_SCHEDULE_INTERLEAVED_1F1B);
  }
  if (vocab_size > 256) {  // kernels rearrange only what has 256 rows and columns
    spec.mutable_model()->set_max_position_embeddings(256);
    spec.mutable_train()->set_seq_length(256);
    spec.mutable_train()->set_global_batch_size(4);  // two micro-batches, as more take no more
  }
  const NodeMemory computed = MemoryOfJob(spec).value();
  int64_t tensors = 0;
  for (const auto& [rank, memory, connections] : computed.ranks)
    tensors += memory.on_device() - memory.workspaces;
  // With more than two replicas, too much of the peak counts repeatedly. Snapshots come after the
  // step.
  const Measured measured = MeasuredRun(spec);
  const int64_t peak = data > 2 ? measured.counted_once + computed.snapshots / 2 : measured.peak;
  // The run seals one snapshot, so that it touches one of two buffers, and has no host process.
  std::printf("%s: computed %s, of it %s tensors and %s snapshots; the peak was %lld MiB\n", name,
              base::FormatBytes(computed.sum()).c_str(), base::FormatBytes(tensors).c_str(),
              base::FormatBytes(computed.snapshots).c_str(), static_cast<long long>(peak >> 20));
  EXPECT_GE(computed.sum() - computed.snapshots / 2 - computed.host, peak);
  // Exactly computed memory is really used; a tenth allows for buffers that this shape does not
  // fill.
  EXPECT_LE(tensors + computed.snapshots / 2, peak / 9 * 10);
}

// The output matrix dwarfs the rest, so that what the kernels rearrange counts. `./dev soak`
// computes with a matrix as large as GPT-2's in both precisions.
std::vector<Case> LargeHeads() {
  if (!IsSoak()) return {{"LargeHeadBf16", 1, 1, job::v1::PRECISION_BF16, 16384}};
  return {{"LargeHeadBf16", 1, 1, job::v1::PRECISION_BF16, 50304},
          {"LargeHeadFp32", 1, 1, job::v1::PRECISION_FP32, 50304}};
}

INSTANTIATE_TEST_SUITE_P(LargeHeads, ComputedMemory, ::testing::ValuesIn(LargeHeads()),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Jobs, ComputedMemory,
    ::testing::Values(Case{"OneRankFp32", 1, 1, job::v1::PRECISION_FP32},
                      Case{"FourRanksFp32", 2, 2, job::v1::PRECISION_FP32},
                      Case{"FourRanksBf16", 2, 2, job::v1::PRECISION_BF16},
                      Case{"TiedBf16", 1, 2, job::v1::PRECISION_BF16, 256, 1, 1, 1, 0,
                           job::v1::PIPELINE_SCHEDULE_1F1B, 2, true},
                      Case{"InterleavedFp32", 1, 2, job::v1::PRECISION_FP32, 256, 2},
                      Case{"InterleavedZero1Fp32", 4, 2, job::v1::PRECISION_FP32, 256, 4},
                      Case{"InterleavedZero2Fp32", 4, 2, job::v1::PRECISION_FP32, 256, 4, 1, 2},
                      Case{"BucketsZero2Fp32", 4, 1, job::v1::PRECISION_FP32, 256, 1, 1, 2, 1},
                      Case{"TensorFp32", 1, 2, job::v1::PRECISION_FP32, 256, 1, 2},
                      Case{"SharedHeadFp32", 1, 2, job::v1::PRECISION_FP32, 256, 1, 2, 1, 0,
                           job::v1::PIPELINE_SCHEDULE_1F1B, 1},
                      Case{"TensorBf16", 2, 1, job::v1::PRECISION_BF16, 256, 1, 2},
                      Case{"TensorBucketsBf16", 2, 1, job::v1::PRECISION_BF16, 256, 1, 2, 2, 1},
                      Case{"ZeroBubbleFp32", 1, 2, job::v1::PRECISION_FP32, 256, 1, 1, 1, 0,
                           job::v1::PIPELINE_SCHEDULE_ZB_H1}),
    [](const auto& info) { return info.param.name; });

struct Stage2Case {
  int pipeline = 2;
  int virtual_stages = 1;
  int64_t bucket_size = 0;
  job::v1::PipelineSchedule schedule = job::v1::PIPELINE_SCHEDULE_1F1B;
  bool tied = false;
};

// 8 layers over 4 replicas.
job::v1::JobSpec JobOf(const Stage2Case& given, int zero_stage) {
  job::v1::JobSpec spec = LargerJob(4, given.pipeline, job::v1::PRECISION_FP32);
  spec.mutable_model()->set_num_hidden_layers(8);
  spec.mutable_model()->set_tie_word_embeddings(given.tied);
  spec.mutable_train()->set_global_batch_size(16);
  spec.mutable_parallel()->set_pipeline_schedule(given.schedule);
  spec.mutable_parallel()->set_virtual_pipeline_model_parallel_size(given.virtual_stages);
  spec.mutable_parallel()->set_ddp_bucket_size(given.bucket_size);
  spec.mutable_parallel()->set_zero_stage(zero_stage);
  return spec;
}

constexpr auto kInterleaved = job::v1::PIPELINE_SCHEDULE_INTERLEAVED_1F1B;

// For G elements over d replicas, stage 1 keeps G. Stage 2 keeps G / d, twice the largest bucket,
// and the early gradients of buckets without a buffer: with a split backward those of embeddings
// and of all parameters but matrices, otherwise those of a tied output matrix.
TEST(RankMemory, Stage2KeepsShardsOfGradientsAndBuffersForTheLargestBucket) {
  for (const Stage2Case& given :
       {Stage2Case{.bucket_size = 1}, Stage2Case{.pipeline = 1, .bucket_size = 4'000'000},
        Stage2Case{.virtual_stages = 2, .bucket_size = 1, .schedule = kInterleaved},
        Stage2Case{.virtual_stages = 4, .schedule = kInterleaved},
        Stage2Case{.bucket_size = 1, .schedule = job::v1::PIPELINE_SCHEDULE_GPIPE},
        Stage2Case{.bucket_size = 1, .schedule = job::v1::PIPELINE_SCHEDULE_ZB_H1},
        Stage2Case{.pipeline = 1, .bucket_size = 1, .tied = true}}) {
    const auto config = model::MakeModelConfig(JobOf(given, 2).model()).value();
    const int num_chunks = given.pipeline * given.virtual_stages;
    for (int rank = 0; rank < 4 * given.pipeline; ++rank) {
      SCOPED_TRACE(absl::StrCat(given.pipeline, " x ", given.virtual_stages, ", buckets of ",
                                given.bucket_size, ", rank ", rank));
      int64_t all = 0;
      int64_t largest = 0;
      int64_t early = 0;
      for (int chunk = rank / 4; chunk < num_chunks; chunk += given.pipeline) {
        const auto range = model::MakeChunkRange(config, num_chunks, chunk).value();
        const model::ChunkLayout layout(config, range);
        all += layout.padded_elements(4);
        for (const model::Bucket& bucket : layout.Buckets(4, given.bucket_size)) {
          largest = std::max(largest, bucket.range.count);
        }
        for (const model::Parameter& parameter : layout.parameters()) {
          const bool is_matrix = parameter.shape.size() == 2;
          const bool is_embedding = absl::StrContains(parameter.name, "embed");
          if (given.schedule == job::v1::PIPELINE_SCHEDULE_ZB_H1 ? is_embedding || !is_matrix
                                                                 : given.tied && is_embedding) {
            early += parameter.size;
          }
        }
      }
      const auto need = [&](int zero_stage) {
        return MemoryOf(JobOf(given, zero_stage), rank).value();
      };
      constexpr auto kBytes = static_cast<int64_t>(sizeof(float));
      // A buffer, and what is carried to the next one, begins with the bucket's first layer.
      constexpr int64_t kCarriedMax = int64_t{3} * 64 * 4 * kBytes;
      EXPECT_EQ(need(1).gradients, all * kBytes);
      EXPECT_GE(need(2).gradients, (all / 4 + largest) * kBytes);
      EXPECT_LE(need(2).gradients, (all / 4 + 2 * largest + early) * kBytes + kCarriedMax);
      EXPECT_LT(need(2).gradients, need(1).gradients);
      EXPECT_EQ(need(1).sum() - need(2).sum(), need(1).gradients - need(2).gradients);
    }
  }
}

// The last stage has a copy of the first one's matrix, and both have memory for its gradient; what
// an untied model has for a matrix of its own, the optimizer's state above all, is saved.
TEST(RankMemory, BothEndsOfAModelHaveMemoryForATiedEmbedding) {
  for (const int tensor : {1, 2}) {
    const auto need = [&](int rank, bool tied) {
      job::v1::JobSpec spec = LargerJob(1, 3, job::v1::PRECISION_BF16);
      spec.mutable_model()->set_num_hidden_layers(3);
      spec.mutable_model()->set_vocab_size(1024);
      spec.mutable_parallel()->set_tensor_model_parallel_size(tensor);
      spec.mutable_model()->set_tie_word_embeddings(tied);
      return MemoryOf(spec, rank * tensor).value();
    };
    const int64_t elements =
        1024 * LargerJob(1, 1, job::v1::PRECISION_BF16).model().hidden_size() / tensor;
    EXPECT_EQ(need(0, true).gradients - need(0, false).gradients, 4 * elements);
    EXPECT_EQ(need(0, true).sum() - need(0, false).sum(), 4 * elements);
    EXPECT_EQ(need(1, true).sum(), need(1, false).sum());
    const RankMemory tied = need(2, true);
    const RankMemory untied = need(2, false);
    EXPECT_EQ(tied.weights, untied.weights);
    EXPECT_EQ(tied.gradients, untied.gradients);
    EXPECT_EQ(untied.optimizer - tied.optimizer, 12 * elements);
  }
}

// A stage can receive a micro-batch while the previous one is still there.
TEST(RankMemory, AStageThatReceivesKeepsOneMicrobatchMoreWhereTransfersOverlap) {
  job::v1::JobSpec spec = LargerJob(1, 2, job::v1::PRECISION_FP32);
  for (const auto schedule : {job::v1::PIPELINE_SCHEDULE_1F1B, job::v1::PIPELINE_SCHEDULE_ZB_H1}) {
    spec.mutable_parallel()->set_pipeline_schedule(schedule);
    const auto need = [&](int rank, bool overlaps) {
      spec.mutable_parallel()->set_overlap_p2p_communication(overlaps);
      return MemoryOf(spec, rank).value();
    };
    EXPECT_EQ(need(0, true).activations, need(0, false).activations);
    const RankMemory without = need(1, false);
    const RankMemory with = need(1, true);
    EXPECT_EQ(with.num_slots, without.num_slots + 1);
    EXPECT_EQ(with.activations, without.activations / without.num_slots * with.num_slots);
    EXPECT_EQ(with.sum() - without.sum(), with.activations - without.activations);
  }
}

// The computed saving is real, with one chunk per stage and with four.
TEST(RankMemory, ARealRunOfStage2TakesLessThanOneOfStage1) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer keeps freed memory, or a shadow of all memory";
#endif
  for (const Stage2Case& given : {Stage2Case{.pipeline = 1, .bucket_size = 1},
                                  Stage2Case{.virtual_stages = 4, .schedule = kInterleaved}}) {
    const auto computed = [&](int zero_stage) {
      return MemoryOfJob(JobOf(given, zero_stage)).value().sum();
    };
    const auto measured = [&](int zero_stage) {
      return MeasuredRun(JobOf(given, zero_stage)).counted_once;
    };
    const int64_t saved = computed(1) - computed(2);
    const int64_t really_saved = measured(1) - measured(2);
    std::printf("saved: computed %s, measured %lld MiB\n", base::FormatBytes(saved).c_str(),
                static_cast<long long>(really_saved >> 20));
    EXPECT_GT(saved, int64_t{32} << 20);
    // The peak of each of two runs is a few MiB off, by what the heap happens to keep.
    constexpr int64_t kHeapNoise = int64_t{8} << 20;
    EXPECT_NEAR(static_cast<double>(really_saved), static_cast<double>(saved), kHeapNoise);
  }
}

// The rings of streams between machines, as the ranks' own processes would allocate them.
TEST(NodeMemory, RanksOnTwoMachinesNeedTheRingsThatTheyReallyAllocate) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer has a heap of its own";
#endif
  const job::v1::JobSpec spec = LargerJob(2, 2, job::v1::PRECISION_FP32);
  const NodeMemory together = MemoryOfJob(spec).value();
  for (const auto& [rank, memory, connections] : together.ranks) EXPECT_EQ(memory.communicators, 0);
  int64_t computed = 0;
  for (const std::vector<int>& here : {std::vector<int>{0, 1}, std::vector<int>{2, 3}}) {
    const NodeMemory apart = MemoryOfNode(spec, here).value();
    for (const auto& [rank, memory, connections] : apart.ranks) {
      const RankMemory& alone = together.ranks[static_cast<size_t>(rank)].memory;
      EXPECT_GE(memory.communicators, 2 * (512 << 10));
      EXPECT_EQ(memory.sum() - alone.sum(), memory.communicators);
      EXPECT_EQ(memory.on_device(), alone.on_device());
      computed += memory.communicators;
    }
  }
  const int64_t measured =
      MeasuredRun(spec, {"n0", "n0", "n1", "n1"}).heap - MeasuredRun(spec).heap;
  std::printf("rings: computed %s, the heap grew by %s\n", base::FormatBytes(computed).c_str(),
              base::FormatBytes(measured).c_str());
  // The second machine's loader and the streams' own records are the rest.
  constexpr int64_t kRest = 1 << 20;
  EXPECT_GE(measured, computed);
  EXPECT_LE(measured, computed + kRest);
}

TEST(NodeMemory, NcclHasBuffersForEachChannelOfARanksGroups) {
  const auto exchanges_of = [](int data, int pipeline, bool tied, bool shares = false) {
    job::v1::JobSpec spec = LargerJob(data, pipeline, job::v1::PRECISION_BF16);
    spec.mutable_model()->set_num_hidden_layers(6);
    spec.mutable_model()->set_tie_word_embeddings(tied);
    spec.set_device(job::v1::DEVICE_CUDA);
    spec.set_device_sharing(shares);
    const NodeMemory memory = MemoryOfJob(spec).value();
    for (const auto& [rank, need, connections] : memory.ranks) {
      EXPECT_EQ(need.device_communicators, memory.ranks[0].memory.device_communicators) << rank;
    }
    return memory.ranks[0].memory.device_communicators;
  };
  const int64_t of_one = exchanges_of(2, 1, false);  // gradients, parameters and norms
  EXPECT_EQ(of_one, kNcclCommunicatorBytes);
  EXPECT_EQ(exchanges_of(1, 1, false), 0);
  EXPECT_EQ(exchanges_of(2, 1, false, /*shares=*/true), 0);
  // Two channels for each direction, for a stage of the middle as for the last one.
  EXPECT_EQ(exchanges_of(1, 3, false), 5 * of_one);
  EXPECT_EQ(exchanges_of(1, 3, true), 7 * of_one);
  EXPECT_EQ(exchanges_of(2, 3, true), 8 * of_one);
}

// A job of GPUs that exchange through the host. The strict device stands for the GPU: it, too, has
// memory of its own, and its exchanges are staged.
job::v1::JobSpec SharingJob(const Case& given) {
  job::v1::JobSpec spec = LargerJob(given.data, given.pipeline, given.precision);
  spec.set_device(job::v1::DEVICE_CUDA);
  spec.set_device_sharing(true);
  spec.mutable_train()->set_global_batch_size(4 * given.data);
  spec.mutable_parallel()->set_tensor_model_parallel_size(given.tensor);
  spec.mutable_parallel()->set_zero_stage(given.zero_stage);
  spec.mutable_parallel()->set_pipeline_schedule(given.schedule);
  spec.mutable_parallel()->set_virtual_pipeline_model_parallel_size(given.virtual_stages);
  spec.mutable_model()->set_tie_word_embeddings(given.tied);
  return spec;
}

class PinnedMemory : public ::testing::TestWithParam<Case> {};

TEST_P(PinnedMemory, IsThatWhichAnEngineReallyAllocates) {
  const job::v1::JobSpec spec = SharingJob(GetParam());
  std::map<int, int64_t> measured;
  std::map<int, device::StrictDevice*> devices;
  std::mutex mutex;
  engine::RunOptions options(spec);
  options.make_device = [&](int rank) {
    auto device = device::StrictDevice::Create();
    const std::lock_guard<std::mutex> lock(mutex);
    devices[rank] = device.get();
    return device;
  };
  options.after_step = [&] {
    for (const auto& [rank, device] : devices) measured[rank] = device->most_pinned_bytes();
  };
  engine::RunJob(options);
  ASSERT_EQ(static_cast<int>(measured.size()), job::WorldSize(spec));
  const NodeMemory computed = MemoryOfJob(spec).value();
  EXPECT_FALSE(computed.device_is_host);
  for (const auto& [rank, memory, connections] : computed.ranks) {
    // What a step's numbers leave of their page.
    constexpr int64_t kPage = 4096;
    EXPECT_GE(memory.pinned, measured.at(rank)) << "rank " << rank;
    EXPECT_LT(memory.pinned, measured.at(rank) + kPage) << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, PinnedMemory,
    ::testing::Values(Case{"Alone", 1, 1, job::v1::PRECISION_FP32},
                      Case{"Data", 2, 1, job::v1::PRECISION_FP32},
                      // The stage in the middle reads no batches, and has both neighbours.
                      Case{"Pipeline", 1, 4, job::v1::PRECISION_BF16},
                      Case{"Interleaved", 1, 2, job::v1::PRECISION_FP32, 256, 2, 1, 1, 0,
                           kInterleaved},
                      Case{"TiedPipeline", 1, 2, job::v1::PRECISION_FP32, 256, 1, 1, 1, 0,
                           job::v1::PIPELINE_SCHEDULE_1F1B, 2, true},
                      Case{"TensorZero2", 2, 1, job::v1::PRECISION_FP32, 256, 1, 2, 2}),
    [](const auto& info) { return info.param.name; });

TEST(NodeMemory, AJobOfProcessorsPinsNothingAndHasNoOtherMemoryOfADevice) {
  const auto of_job = MemoryOfJob(LargerJob(2, 2, job::v1::PRECISION_FP32)).value();
  for (const auto& [rank, memory, connections] : of_job.ranks) {
    EXPECT_EQ(memory.pinned, 0);
    EXPECT_EQ(memory.context, 0);
    EXPECT_EQ(memory.device_communicators, 0);
  }
}

// NCCL has its buffers on the device, once for each channel that a rank uses with others.
TEST(NodeMemory, AJobOfGpusNeedsWorkspacesAContextAndNcclsBuffersOnTheDevice) {
  job::v1::JobSpec spec = LargerJob(1, 2, job::v1::PRECISION_BF16);
  const auto of_processor = MemoryOf(spec, 0).value();
  spec.set_device(job::v1::DEVICE_CUDA);
  const auto apart = MemoryOf(spec, 0).value();
  // The communicator of norms, and those to and from the next stage. The data-parallel group
  // has one rank and needs none.
  EXPECT_EQ(apart.device_communicators, 3 * kNcclCommunicatorBytes);
  EXPECT_EQ(apart.context, kCudaContextBytes);
  EXPECT_GE(apart.workspaces, kCudaProductBytes + kCudaKernelBytes);
  EXPECT_GT(apart.graphs, 0);
  EXPECT_EQ(apart.on_device() - apart.workspaces - apart.context - apart.graphs -
                apart.device_communicators,
            of_processor.on_device() - of_processor.workspaces);
  spec.set_device_sharing(true);
  const auto sharing = MemoryOf(spec, 0).value();
  EXPECT_EQ(sharing.device_communicators, 0);
  EXPECT_EQ(sharing.pinned - apart.pinned, 3 * 2 * static_cast<int64_t>(device::kStagingBytes));

  NodeMemory needed;
  needed.device_is_host = false;
  needed.ranks.push_back({.rank = 0, .memory = apart});
  EXPECT_THAT(
      std::string(CheckDeviceMemory(needed, {.available_bytes = 0, .source = "a GPU"}).message()),
      AllOf(HasSubstr(" MiB (workspaces) + 512.0 MiB (the driver's) + "),
            HasSubstr(" (CUDA graphs) + "), HasSubstr(" MiB (NCCL) = ")));
}

TEST(NodeMemory, SharedPartsAreTheBytesOfTheRegionsThatAreMade) {
  job::v1::JobSpec spec = LargerJob(2, 2, job::v1::PRECISION_FP32);
  NodeRequest request;
  request.job_id = "job";
  request.spec = &spec;
  request.node_id = "n0";
  for (int rank = 0; rank < 4; ++rank) {
    request.placements.emplace_back();
    request.placements.back().set_rank(rank);
    request.placements.back().set_node_id(rank < 3 ? "n0" : "n1");
  }
  const NodeMemory computed = MemoryOfNode(spec, {0, 1, 2}).value();
  const AttemptMemory made = MakeAttemptMemory(request).value();
  EXPECT_EQ(computed.ranks.size(), 3u);
  EXPECT_EQ(computed.collectives, static_cast<int64_t>(made.comm->size_bytes()));
  EXPECT_EQ(computed.batch_ring, static_cast<int64_t>(made.ring->size_bytes()));
  EXPECT_EQ(computed.telemetry,
            static_cast<int64_t>(made.heartbeats->size_bytes() + made.spans->size_bytes()));
  const auto made_snapshots = [&] {
    int64_t bytes = 0;
    for (int rank = 0; rank < 3; ++rank) {
      bytes += static_cast<int64_t>(MakeSnapshotMemory(spec, rank).value()->size_bytes());
    }
    return bytes;
  };
  EXPECT_EQ(computed.snapshots, made_snapshots());
  // Rank 0 keeps the table of matrix products, where there is one.
  spec.set_device(job::v1::DEVICE_CUDA);
  const int64_t on_gpus = MemoryOfNode(spec, {0, 1, 2}).value().snapshots;
  EXPECT_EQ(on_gpus, made_snapshots());
  EXPECT_EQ(on_gpus - computed.snapshots, int64_t{1} << 20);
  EXPECT_EQ(checkpoint::KeepTable(*MakeSnapshotMemory(spec, 0).value(), "table"), absl::OkStatus());
}

TEST(NodeMemory, MoreThanIsLeftIsRefusedWithSumAndLimitAndItsSource) {
  NodeMemory needed;
  needed.ranks.push_back({.rank = 0, .memory = {.weights = 3 << 20, .optimizer = 6 << 20}});
  needed.snapshots = 1 << 20;
  EXPECT_EQ(needed.sum(), 10 << 20);
  base::MemoryLimit limit;
  limit.limit_bytes = int64_t{2} << 30;
  limit.source = "memory.max of /sys/fs/cgroup/job";
  limit.available_bytes = needed.sum();
  EXPECT_EQ(CheckMemory(needed, limit), absl::OkStatus());
  EXPECT_EQ(CheckMemory(needed, std::nullopt), absl::OkStatus());
  --limit.available_bytes;
  const absl::Status refused = CheckMemory(needed, limit);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("3.0 MiB (weights)"), HasSubstr("6.0 MiB (optimizer)"),
                    HasSubstr("= 10.0 MiB"), HasSubstr("of 2.0 GiB are left"),
                    HasSubstr("memory.max of /sys/fs/cgroup/job")));
}

TEST(NodeMemory, RefusalsNameCommunicatorsAndPinnedMemoryWhereThereAreAny) {
  NodeMemory needed;
  needed.ranks.push_back({.rank = 0, .memory = {.weights = 3 << 20}});
  needed.ranks.push_back({.rank = 1, .memory = {.weights = 3 << 20}});
  base::MemoryLimit limit;
  EXPECT_THAT(std::string(CheckMemory(needed, limit).message()),
              AllOf(HasSubstr("6.0 MiB (weights) + "), Not(HasSubstr("communicators")),
                    Not(HasSubstr("pinned"))));
  for (NodeMemory::Rank& rank : needed.ranks) {
    rank.memory.communicators = 1 << 20;
    rank.memory.pinned = 2 << 20;
  }
  EXPECT_THAT(std::string(CheckMemory(needed, limit).message()),
              AllOf(HasSubstr(" + 2.0 MiB (communicators) + 4.0 MiB (pinned) + "),
                    HasSubstr(" = 12.0 MiB; ")));
}

TEST(NodeMemory, DevicesWithMemoryOfTheirOwnAreCheckedApartFromTheMachine) {
  NodeMemory needed;
  needed.ranks.push_back({.rank = 0, .memory = {.weights = 3 << 20, .process = 1 << 20}});
  needed.ranks.push_back(
      {.rank = 1, .memory = {.weights = 4 << 20, .workspaces = 1 << 20, .pinned = 2 << 20}});
  base::MemoryLimit device = {.available_bytes = 0, .limit_bytes = 8 << 20, .source = "a device"};
  EXPECT_EQ(needed.sum(), 11 << 20);
  EXPECT_EQ(CheckDeviceMemory(needed, device), absl::OkStatus()) << "the machine's memory counts";

  needed.device_is_host = false;
  EXPECT_EQ(needed.sum(), 3 << 20);
  device.available_bytes = 5 << 20;
  EXPECT_EQ(CheckDeviceMemory(needed, device), absl::OkStatus());
  --device.available_bytes;
  const absl::Status refused = CheckDeviceMemory(needed, device);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("memory: rank 1 needs 4.0 MiB (weights) + "),
                    HasSubstr(" + 1.0 MiB (workspaces) = 5.0 MiB on its device; 5.0 MiB of 8.0 MiB "
                              "are left by a device; ")));
  base::MemoryLimit machine;
  EXPECT_THAT(
      std::string(CheckMemory(needed, machine).message()),
      AllOf(Not(HasSubstr("weights")), HasSubstr("2.0 MiB (pinned)"), HasSubstr(" = 3.0 MiB; ")));
}

}  // namespace
}  // namespace megascale::layout
