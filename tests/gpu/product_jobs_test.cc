// Whole jobs on the emulated GPU, whose times differ from run to run: which algorithms make their
// matrix products, at a job's first start, after a restart and in a job that begins from a
// checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpu/assembly.h"
#include "gpu/emulator/assembled/emulated_gpu.h"
#include "gpu/emulator/cublas_lt/emulated_cublas_lt.h"
#include "gpu/emulator/emulated_cuda.h"
#include "gpu/ops/products/algorithm_table.h"
#include "gpu/ops/products/device_table.h"
#include "runtime/base/fd.h"
#include "runtime/checkpoint/product_table.h"
#include "runtime/engine/testing/test_job.h"

namespace megascale::engine {
namespace {

using agent::v1::RestorePoint;
using emulator::CountsOfCublasLt;
using emulator::EmulatedMachine;
using job::v1::JobSpec;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kSteps = 4;

struct Layout {
  std::string name = "";
  int data = 1;
  int pipeline = 1;
  int tensor = 1;
  job::v1::Precision precision = job::v1::PRECISION_BF16;
  int zero_stage = 1;
  bool llama = false;
  bool overlap = false;  // of exchanges of tensor ranks
};

std::string NewFolder(const std::string& name) {
  std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  for (char& c : test) c = c == '/' ? '-' : c;
  const std::string folder = absl::StrCat(::testing::TempDir(), "/products-", test, "-", name);
  std::filesystem::remove_all(folder);
  EXPECT_TRUE(base::MakeDirectories(folder).ok());
  return folder;
}

RunOptions JobIn(const std::string& folder, const Layout& layout) {
  JobSpec spec = ToyJob(WriteTestText("text"), layout.data, layout.pipeline);
  spec.mutable_model()->set_num_hidden_layers(2);
  spec.mutable_train()->set_global_batch_size(4 * layout.data);
  spec.mutable_train()->set_steps(kSteps);
  spec.mutable_train()->set_precision(layout.precision);
  spec.mutable_parallel()->set_tensor_model_parallel_size(layout.tensor);
  spec.mutable_parallel()->set_zero_stage(layout.zero_stage);
  spec.mutable_parallel()->set_tp_comm_overlap(layout.overlap);
  if (layout.llama) {
    MakeLikeLlama(spec.mutable_model());
    spec.mutable_model()->set_num_key_value_heads(1);
  }
  RunOptions options(spec);
  options.job_directory = folder;
  options.make_device = [](int rank) {
    return gpu::AssembleGpuDevice(emulator::EmulatedTables(),
                                  {.local_rank = rank, .may_share = true})
        .value();
  };
  return options;
}

RunOptions From(RunOptions options, const RunResult& stopped) {
  options.attempt = 2;
  options.restore.set_source(RestorePoint::SOURCE_STORAGE);
  options.restore.set_step(stopped.records[0].back().step());
  options.restore.set_directory(stopped.checkpoint);
  return options;
}

// Returns how often the library was asked for algorithms while the job ran.
int QuestionsOf(const RunOptions& options, RunResult* result) {
  const int before = CountsOfCublasLt().heuristics;
  *result = RunJob(options);
  return CountsOfCublasLt().heuristics - before;
}

class ProductJobsTest : public ::testing::TestWithParam<Layout> {};

// That nothing asks the library again also shows that the products which were found before the
// first step are those of the steps.
TEST_P(ProductJobsTest, TheFirstStartTunesAndARestartNever) {
  const EmulatedMachine machine;
  const std::string folder = NewFolder("job");
  RunResult calm;
  EXPECT_GT(QuestionsOf(JobIn(folder, GetParam()), &calm), 0);
  const std::string table = checkpoint::ReadProductTable(folder).value();

  RunResult stopped, resumed;
  EXPECT_EQ(QuestionsOf(JobIn(folder, GetParam()).StopAfter(2), &stopped), 0);
  EXPECT_EQ(QuestionsOf(From(JobIn(folder, GetParam()), stopped), &resumed), 0);
  EXPECT_EQ(resumed.digest, calm.digest);
  EXPECT_EQ(checkpoint::ReadProductTable(folder).value(), table);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ProductJobsTest,
    ::testing::Values(Layout{.name = "Fp32", .precision = job::v1::PRECISION_FP32},
                      Layout{.name = "Llama", .llama = true},
                      Layout{
                          .name = "DataPipelineZero2", .data = 2, .pipeline = 2, .zero_stage = 2},
                      Layout{.name = "TensorOverlap", .tensor = 2, .overlap = true}),
    [](const auto& info) { return info.param.name; });

TEST(ProductJobTest, AJobThatBeginsFromACheckpointTakesItsTable) {
  const EmulatedMachine machine;
  const Layout layout = {.pipeline = 2};
  const std::string first = NewFolder("first"), second = NewFolder("second");
  RunResult stopped, begun;
  QuestionsOf(JobIn(first, layout).StopAfter(2), &stopped);
  EXPECT_EQ(QuestionsOf(From(JobIn(second, layout), stopped), &begun), 0);
  EXPECT_EQ(checkpoint::ReadProductTable(second).value(),
            checkpoint::ReadProductTable(first).value());
}

// The folder is away as the attempt starts, as with a file system that cannot be read.
TEST(ProductJobTest, ARestartFromMemoryHasItsTableInMemory) {
  const EmulatedMachine machine;
  const Layout layout = {.data = 2};
  const std::string folder = NewFolder("job");
  SnapshotMemory snapshots;
  const auto on_gpus = [&](SnapshotMemory* memory) {
    RunOptions options = JobIn(folder, layout);
    options.spec.set_device(job::v1::DEVICE_CUDA);
    options.snapshots = memory;
    return options;
  };
  const RunResult calm = RunJob(on_gpus(nullptr));
  const RunResult stopped = RunJob(on_gpus(&snapshots).StopAfter(2));
  const std::string table = checkpoint::ReadProductTable(folder).value();
  std::filesystem::remove_all(folder);

  RunOptions options = From(on_gpus(&snapshots), stopped);
  options.restore.set_source(RestorePoint::SOURCE_MEMORY);
  options.restore.clear_directory();
  options.on_load = [&](int rank, const absl::StatusOr<std::string>& loaded) {
    EXPECT_EQ(loaded.status(), absl::OkStatus());
    if (rank != 0) return;
    // It is back, for the checkpoint.
    EXPECT_EQ(base::MakeDirectories(folder), absl::OkStatus());
    EXPECT_EQ(checkpoint::KeepProductTable(folder, table).value(), table);
  };
  RunResult resumed;
  EXPECT_EQ(QuestionsOf(options, &resumed), 0);
  EXPECT_EQ(resumed.digest, calm.digest);
}

gpu::AlgorithmTable TableIn(const std::string& folder) {
  return gpu::AlgorithmTable::FromJson(checkpoint::ReadProductTable(folder).value()).value();
}

bool Makes(gpu::Epilogue epilogue, const gpu::AlgorithmTable& table) {
  return std::any_of(table.products().begin(), table.products().end(), [&](const auto& entry) {
    return entry.first.epilogue == epilogue && entry.second.id != gpu::kNoAlgorithm;
  });
}

// What the table says counts, even where the library could do better later.
TEST(ProductJobTest, GradientsOfBiasesThatTheLibraryLacksAreSumsOfColumnsInAllAttempts) {
  const EmulatedMachine machine;
  const std::string with = NewFolder("with"), without = NewFolder("without");
  RunResult fused, first, resumed;
  QuestionsOf(JobIn(with, {}), &fused);
  EXPECT_TRUE(Makes(gpu::Epilogue::kBiasGradient, TableIn(with)));
  emulator::CublasLtFaults faults;
  faults.has_bias_gradients = false;
  emulator::SetFaultsOfCublasLt(faults);
  QuestionsOf(JobIn(without, {}).StopAfter(2), &first);
  emulator::SetFaultsOfCublasLt({});
  EXPECT_FALSE(Makes(gpu::Epilogue::kBiasGradient, TableIn(without)));
  EXPECT_TRUE(Makes(gpu::Epilogue::kBiasGelu, TableIn(without)));
  EXPECT_EQ(QuestionsOf(From(JobIn(without, {}), first), &resumed), 0);
}

TEST(ProductJobTest, AnActivationThatTheLibraryLacksIsMadeByAKernelInAllAttempts) {
  const EmulatedMachine machine;
  const std::string with = NewFolder("with"), without = NewFolder("without");
  RunResult fused, first, resumed;
  QuestionsOf(JobIn(with, {}), &fused);
  EXPECT_TRUE(Makes(gpu::Epilogue::kBiasGelu, TableIn(with)));
  emulator::CublasLtFaults faults;
  faults.has_activations = false;
  emulator::SetFaultsOfCublasLt(faults);
  QuestionsOf(JobIn(without, {}).StopAfter(2), &first);
  emulator::SetFaultsOfCublasLt({});
  EXPECT_FALSE(Makes(gpu::Epilogue::kBiasGelu, TableIn(without)));
  EXPECT_EQ(QuestionsOf(From(JobIn(without, {}), first), &resumed), 0);
  // Rounded once instead of twice.
  EXPECT_NE(resumed.digest, fused.digest);
}

// Tables of kinds of devices, as the program would have them.
class DeviceTables {
 public:
  void Add(const std::string& device, const std::string& table) {
    texts_.push_back(absl::StrCat(
        R"({"device": ")", device, R"(", "cublas_lt": 130100, "workspace_bytes": 33554432, )",
        R"("driver": "none", "date": "today", "commit": "this", )", R"("table": )", table, "}"));
  }
  // Returns a job whose devices have the tables. They outlive it.
  RunOptions JobIn(const std::string& folder) {
    files_.clear();
    for (const std::string& text : texts_) files_.push_back({"test", text.data(), text.size()});
    RunOptions options = engine::JobIn(folder, {});
    options.make_device = [this](int rank) {
      gpu::GpuTables tables = emulator::EmulatedTables();
      tables.device_tables = files_;
      return gpu::AssembleGpuDevice(tables, {.local_rank = rank, .may_share = true}).value();
    };
    return options;
  }

 private:
  std::vector<std::string> texts_;
  std::vector<gpu::DeviceTableFile> files_;
};

TEST(ProductJobTest, ATableOfThisKindOfDeviceIsUsedInPlaceOfMeasuring) {
  const EmulatedMachine machine;
  const std::string measured = NewFolder("measured"), given = NewFolder("given");
  RunResult by_measuring, by_table;
  EXPECT_GT(QuestionsOf(JobIn(measured, {}), &by_measuring), 0);
  DeviceTables tables;
  tables.Add("Another GPU", gpu::AlgorithmTable().ToJson());
  tables.Add(emulator::EmulatedOptions().device_name,
             checkpoint::ReadProductTable(measured).value());
  EXPECT_EQ(QuestionsOf(tables.JobIn(given), &by_table), 0);
  EXPECT_EQ(TableIn(given).products(), TableIn(measured).products());
  EXPECT_THAT(TableIn(given).origin(), HasSubstr(emulator::EmulatedOptions().device_name));
  EXPECT_EQ(TableIn(measured).origin(), "");
  EXPECT_EQ(by_table.digest, by_measuring.digest);
}

TEST(ProductJobTest, WhatATableOfAnotherDeviceOrLibraryHasIsMeasured) {
  const EmulatedMachine machine;
  const std::string measured = NewFolder("measured");
  RunResult none;
  QuestionsOf(JobIn(measured, {}), &none);
  DeviceTables of_another, of_this;
  of_another.Add("Another GPU", checkpoint::ReadProductTable(measured).value());
  of_this.Add(emulator::EmulatedOptions().device_name,
              checkpoint::ReadProductTable(measured).value());
  EXPECT_GT(QuestionsOf(of_another.JobIn(NewFolder("device")), &none), 0);
  emulator::CublasLtFaults newer;
  newer.version = 130200;
  emulator::SetFaultsOfCublasLt(newer);
  EXPECT_GT(QuestionsOf(of_this.JobIn(NewFolder("library")), &none), 0);
  emulator::SetFaultsOfCublasLt({});
}

TEST(ProductJobTest, AnAlgorithmOfTheTableThatTheLibraryRefusesIsMeasuredAnew) {
  const EmulatedMachine machine;
  const std::string measured = NewFolder("measured"), given = NewFolder("given");
  RunResult none;
  QuestionsOf(JobIn(measured, {}), &none);
  DeviceTables tables;
  tables.Add(emulator::EmulatedOptions().device_name,
             checkpoint::ReadProductTable(measured).value());
  emulator::CublasLtFaults faults;
  faults.refused_algorithm = TableIn(measured).products().begin()->second.id;
  emulator::SetFaultsOfCublasLt(faults);
  EXPECT_GT(QuestionsOf(tables.JobIn(given), &none), 0);
  emulator::SetFaultsOfCublasLt({});
  const gpu::AlgorithmTable before = TableIn(measured), after = TableIn(given);
  for (const auto& [product, algorithm] : after.products()) {
    EXPECT_NE(algorithm.id, faults.refused_algorithm);
    const gpu::Algorithm* const known = before.Find(product);
    if (known != nullptr && known->id != faults.refused_algorithm) {
      EXPECT_EQ(algorithm, *known);
    }
  }
}

TEST(ProductJobTest, TheTuningLeavesNoTraceInTheBits) {
  const EmulatedMachine machine;
  const Layout layout = {.data = 2};
  RunOptions without = JobIn("", layout);
  EXPECT_EQ(RunJob(JobIn(NewFolder("job"), layout)).digest, RunJob(without).digest);
}

TEST(ProductJobTest, ADeviceThatLacksAnAlgorithmOfTheTableIsRefusedInOneLine) {
  const EmulatedMachine machine;
  const std::string folder = NewFolder("job");
  RunResult stopped;
  QuestionsOf(JobIn(folder, {}).StopAfter(2), &stopped);
  const gpu::AlgorithmTable table = TableIn(folder);
  emulator::CublasLtFaults faults;
  faults.refused_algorithm = table.products().begin()->second.id;
  emulator::SetFaultsOfCublasLt(faults);
  RunOptions options = From(JobIn(folder, {}), stopped);
  absl::Status status;
  options.on_load = [&](int, const absl::StatusOr<std::string>& loaded) {
    status = loaded.status();
  };
  RunResult none;
  EXPECT_EQ(QuestionsOf(options, &none), 0) << "it must not choose anew";
  emulator::SetFaultsOfCublasLt({});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(absl::StrCat(folder, "/products.json: ")),
                    HasSubstr(absl::StrCat("cannot run the algorithm (", faults.refused_algorithm)),
                    HasSubstr("use the library and kind of device"), Not(HasSubstr("\n"))));
}

}  // namespace
}  // namespace megascale::engine
