#include "runtime/checkpoint/numerics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"

namespace megascale::checkpoint {
namespace {

job::v1::JobSpec Spec() {
  job::v1::JobSpec spec;
  spec.set_name("name");
  spec.mutable_model()->set_hidden_size(192);
  spec.mutable_model()->set_hidden_act(job::v1::ACTIVATION_SWIGLU);
  spec.mutable_model()->set_parallel_block(true);
  spec.mutable_data()->add_files("/text");
  spec.mutable_train()->set_steps(100);
  spec.mutable_train()->set_seq_length(256);
  spec.mutable_train()->set_precision(job::v1::PRECISION_BF16);
  spec.mutable_train()->set_seed(7);
  spec.mutable_optimizer()->set_type(job::v1::OPTIMIZER_TYPE_ADAMW);
  spec.mutable_optimizer()->set_lr(3e-4);
  spec.mutable_optimizer()->set_warmup_steps(20);
  spec.mutable_parallel()->set_data_parallel_size(2);
  spec.mutable_parallel()->set_threads_per_rank(1);
  spec.mutable_checkpoint()->set_interval(10);
  return spec;
}

TEST(NumericsTest, TheFingerprintNamesWhatTheBitsDependOn) {
  const auto fingerprint = MakeNumericsFingerprint(Spec(), "avx512_bf16");
  const auto& fields = fingerprint.fields();
  EXPECT_EQ(fields.at("model.hidden_size"), "192");
  EXPECT_EQ(fields.at("model.hidden_act"), "ACTIVATION_SWIGLU");
  EXPECT_EQ(fields.at("model.parallel_block"), "true");
  EXPECT_EQ(fields.at("optimizer.type"), "OPTIMIZER_TYPE_ADAMW");
  EXPECT_EQ(fields.at("optimizer.lr"), "0.0003");
  EXPECT_EQ(fields.at("optimizer.warmup_steps"), "20");
  EXPECT_EQ(fields.at("batch.seq_length"), "256");
  EXPECT_EQ(fields.at("precision"), "PRECISION_BF16");
  EXPECT_EQ(fields.at("seed"), "7");
  EXPECT_EQ(fields.at("layout.data_parallel_size"), "2");
  EXPECT_EQ(fields.at("threads_per_rank"), "1");
  EXPECT_EQ(fields.at("instruction_set"), "avx512_bf16");
  EXPECT_EQ(fields.at("megascale_numerics"), kNumericsVersion);
  EXPECT_FALSE(fields.at("onednn").empty());
  EXPECT_EQ(fields.size(), 14u);
}

TEST(NumericsTest, EveryFieldIsInAnAreaThatCanBeAllowed) {
  const std::vector<absl::string_view> areas = NumericsAreas();
  job::v1::JobSpec spec = Spec();
  spec.set_device(job::v1::DEVICE_CUDA);
  spec.set_device_sharing(true);
  spec.mutable_data()->set_attention(job::v1::ATTENTION_WITHIN_DOCUMENTS);
  const auto fingerprint = MakeNumericsFingerprint(spec, "avx2");
  for (const auto& [field, value] : fingerprint.fields()) {
    const absl::string_view area = absl::string_view(field).substr(0, field.find('.'));
    EXPECT_THAT(areas, ::testing::Contains(area));
  }
}

TEST(NumericsTest, WhatAUserAllowsIsAnAreaOrAll) {
  EXPECT_TRUE(CheckAllowed("f", "all").ok());
  for (const absl::string_view area : NumericsAreas()) EXPECT_TRUE(CheckAllowed("f", area).ok());
  EXPECT_EQ(CheckAllowed("f", "layuot"),
            absl::InvalidArgumentError("f: unknown area 'layuot'; did you mean 'layout'?"));
  EXPECT_EQ(CheckAllowed("f", "\n"),
            absl::InvalidArgumentError(
                "f: unknown area '\\n'; expected one of all, data, model, optimizer, batch, "
                "precision, seed, layout, device, threads_per_rank, instruction_set, onednn, "
                "megascale_numerics, products"));
}

TEST(NumericsTest, TheDeviceCountsUnlessItIsTheProcessor) {
  const auto older = MakeNumericsFingerprint(Spec(), "avx2");  // no device
  job::v1::JobSpec spec = Spec();
  spec.set_device(job::v1::DEVICE_CPU);
  const auto on_cpu = MakeNumericsFingerprint(spec, "avx2");
  EXPECT_EQ(on_cpu.fields().count("device"), 0u);
  EXPECT_EQ(on_cpu.fields().size(), older.fields().size());
  EXPECT_EQ(CompareFingerprints(older, on_cpu, {}), absl::OkStatus());
  spec.set_device(job::v1::DEVICE_CUDA);
  const auto on_cuda = MakeNumericsFingerprint(spec, "avx2");
  EXPECT_EQ(CompareFingerprints(on_cpu, on_cuda, {}),
            absl::FailedPreconditionError(
                "the checkpoint was made under other conditions: device was DEVICE_CPU, is "
                "DEVICE_CUDA; restore them, or go on with other bits by --allow-changed device"));
  EXPECT_EQ(CompareFingerprints(on_cpu, on_cuda, {"device"}), absl::OkStatus());
}

TEST(NumericsTest, AttentionCountsOnlyWithinDocuments) {
  const auto older = MakeNumericsFingerprint(Spec(), "avx2");
  job::v1::JobSpec spec = Spec();
  spec.mutable_data()->set_attention(job::v1::ATTENTION_ACROSS_DOCUMENTS);
  const auto across = MakeNumericsFingerprint(spec, "avx2");
  EXPECT_EQ(across.fields().size(), older.fields().size());
  EXPECT_EQ(CompareFingerprints(older, across, {}), absl::OkStatus());
  spec.mutable_data()->set_attention(job::v1::ATTENTION_WITHIN_DOCUMENTS);
  const auto within = MakeNumericsFingerprint(spec, "avx2");
  EXPECT_EQ(CompareFingerprints(older, within, {}),
            absl::FailedPreconditionError(
                "the checkpoint was made under other conditions: data.attention was "
                "ATTENTION_ACROSS_DOCUMENTS, is ATTENTION_WITHIN_DOCUMENTS; restore them, or go on "
                "with other bits by --allow-changed data"));
}

TEST(NumericsTest, FieldsOfTheModelsSectionsCountAndThePathOfItsWeightsDoesNot) {
  job::v1::JobSpec spec = Spec();
  spec.mutable_model()->set_from("/models/llama");
  spec.mutable_model()->mutable_rope_scaling()->set_rope_type(job::v1::ROPE_TYPE_LINEAR);
  spec.mutable_model()->mutable_rope_scaling()->set_factor(2);
  const auto fingerprint = MakeNumericsFingerprint(spec, "avx2");
  EXPECT_EQ(fingerprint.fields().at("model.rope_scaling.rope_type"), "ROPE_TYPE_LINEAR");
  EXPECT_EQ(fingerprint.fields().at("model.rope_scaling.factor"), "2");
  EXPECT_EQ(fingerprint.fields().count("model.from"), 0u);
}

TEST(NumericsTest, AJobMayBeProlongedMovedAndRenamed) {
  job::v1::JobSpec moved = Spec();
  moved.set_name("other");
  moved.mutable_train()->set_steps(500);
  moved.mutable_data()->set_files(0, "/elsewhere/text");
  moved.mutable_checkpoint()->set_directory("/elsewhere");
  moved.mutable_checkpoint()->set_interval(50);
  moved.mutable_checkpoint()->set_keep(5);
  moved.mutable_checkpoint()->set_keep_best(true);
  moved.mutable_train()->set_eval_interval(50);
  moved.mutable_train()->set_eval_batches(3);
  // A resume compares their learning rates.
  moved.mutable_optimizer()->set_schedule(job::v1::SCHEDULE_WSD);
  moved.mutable_optimizer()->set_decay(job::v1::DECAY_COSINE);
  moved.mutable_optimizer()->set_decay_steps(20);
  moved.mutable_train()->set_recompute_granularity(job::v1::RECOMPUTE_GRANULARITY_FULL);
  moved.mutable_parallel()->set_pipeline_schedule(job::v1::PIPELINE_SCHEDULE_GPIPE);
  moved.mutable_parallel()->set_overlap_grad_reduce(false);
  moved.mutable_parallel()->set_overlap_param_gather(false);
  moved.mutable_parallel()->set_overlap_p2p_communication(false);
  moved.mutable_parallel()->set_tp_comm_overlap(false);
  EXPECT_TRUE(CompareFingerprints(MakeNumericsFingerprint(Spec(), "avx2"),
                                  MakeNumericsFingerprint(moved, "avx2"), {})
                  .ok());
}

// NCCL may add a whole sum in another order than its pieces; the host's communicators do not.
TEST(NumericsTest, WholeExchangesOfTensorRanksCountWithNcclOnly) {
  const auto same = [](bool is_cuda, bool shares) {
    job::v1::JobSpec whole = Spec();
    whole.mutable_parallel()->set_tensor_model_parallel_size(2);
    whole.set_device(is_cuda ? job::v1::DEVICE_CUDA : job::v1::DEVICE_CPU);
    whole.set_device_sharing(shares);
    whole.mutable_parallel()->set_tp_comm_overlap(false);
    job::v1::JobSpec pieces = whole;
    pieces.mutable_parallel()->set_tp_comm_overlap(true);
    return CompareFingerprints(MakeNumericsFingerprint(whole, "H100"),
                               MakeNumericsFingerprint(pieces, "H100"), {})
        .ok();
  };
  EXPECT_TRUE(same(/*is_cuda=*/false, /*shares=*/false));
  EXPECT_TRUE(same(/*is_cuda=*/true, /*shares=*/true));
  EXPECT_FALSE(same(/*is_cuda=*/true, /*shares=*/false));
}

// A reduction after each micro-batch adds in another order than one at the end, and the schedule
// decides which gradients it adds.
TEST(NumericsTest, Stage2HasNumericsOfItsOwnInEachSchedule) {
  const auto fingerprint = [](int zero_stage, job::v1::PipelineSchedule schedule) {
    job::v1::JobSpec spec = Spec();
    spec.mutable_parallel()->set_zero_stage(zero_stage);
    spec.mutable_parallel()->set_pipeline_schedule(schedule);
    return MakeNumericsFingerprint(spec, "avx2");
  };
  const auto refusal = [](const auto& kept, const auto& now) {
    return std::string(CompareFingerprints(kept, now, {}).message());
  };
  const auto k1F1B = job::v1::PIPELINE_SCHEDULE_1F1B;
  const auto kZeroBubble = job::v1::PIPELINE_SCHEDULE_ZB_H1;
  const auto before_stages = MakeNumericsFingerprint(Spec(), "avx2");
  EXPECT_EQ(refusal(before_stages, fingerprint(1, kZeroBubble)), "");
  EXPECT_EQ(refusal(fingerprint(1, k1F1B), fingerprint(1, kZeroBubble)), "");
  EXPECT_EQ(refusal(fingerprint(2, k1F1B), fingerprint(2, k1F1B)), "");
  EXPECT_THAT(refusal(fingerprint(1, k1F1B), fingerprint(2, k1F1B)),
              testing::HasSubstr("layout.zero_stage was 1, is 2"));
  EXPECT_THAT(refusal(fingerprint(2, k1F1B), fingerprint(2, kZeroBubble)),
              testing::HasSubstr("layout.zero_stage_2_schedule was PIPELINE_SCHEDULE_1F1B, is "
                                 "PIPELINE_SCHEDULE_ZB_H1"));
}

// Norms are rounded as the shards are cut; older versions cut a chunk as a whole.
TEST(NumericsTest, BucketsArePartOfTheNumerics) {
  const auto fingerprint = [](int64_t bucket_size) {
    job::v1::JobSpec spec = Spec();
    spec.mutable_parallel()->set_ddp_bucket_size(bucket_size);
    return MakeNumericsFingerprint(spec, "avx2");
  };
  EXPECT_TRUE(CompareFingerprints(fingerprint(7), fingerprint(7), {}).ok());
  EXPECT_TRUE(CompareFingerprints(fingerprint(0), fingerprint(int64_t{1} << 40), {}).ok());
  EXPECT_TRUE(CompareFingerprints(fingerprint(7), fingerprint(8), {"layout"}).ok());
  EXPECT_THAT(std::string(CompareFingerprints(fingerprint(7), fingerprint(8), {}).message()),
              testing::HasSubstr("layout.ddp_bucket_size was 7, is 8"));
}

// A size that the user did not set is not mentioned.
TEST(NumericsTest, OneReplicaHasNoBuckets) {
  const auto fingerprint = [](int replicas, int64_t bucket_size) {
    job::v1::JobSpec spec = Spec();
    spec.mutable_parallel()->set_data_parallel_size(replicas);
    spec.mutable_parallel()->set_ddp_bucket_size(bucket_size);
    return MakeNumericsFingerprint(spec, "avx2");
  };
  const std::string rest = "; restore them, or go on with other bits by --allow-changed layout";
  const std::string what = "the checkpoint was made under other conditions: ";
  EXPECT_EQ(CompareFingerprints(fingerprint(2, 7), fingerprint(1, 0), {}),
            absl::FailedPreconditionError(what + "layout.data_parallel_size was 2, is 1" + rest));
  EXPECT_EQ(CompareFingerprints(fingerprint(1, 0), fingerprint(2, 7), {}),
            absl::FailedPreconditionError(what + "layout.data_parallel_size was 1, is 2" + rest));
  EXPECT_EQ(CompareFingerprints(fingerprint(1, 0), fingerprint(1, 0), {}), absl::OkStatus());
}

TEST(NumericsTest, WhatAnOlderVersionWroteMatchesWhatItDid) {
  auto kept = MakeNumericsFingerprint(Spec(), "avx2");
  kept.mutable_fields()->erase("optimizer.type");
  (*kept.mutable_fields())["layout.pipeline_schedule"] = "PIPELINE_SCHEDULE_1F1B";
  job::v1::JobSpec now = Spec();
  now.mutable_parallel()->set_virtual_pipeline_model_parallel_size(1);
  EXPECT_EQ(CompareFingerprints(kept, MakeNumericsFingerprint(now, "avx2"), {}), absl::OkStatus());
  now.mutable_parallel()->set_virtual_pipeline_model_parallel_size(2);
  EXPECT_THAT(
      std::string(CompareFingerprints(kept, MakeNumericsFingerprint(now, "avx2"), {}).message()),
      testing::HasSubstr("layout.virtual_pipeline_model_parallel_size was 1, is 2"));
}

TEST(NumericsTest, AChangeIsRefusedInOneLineThatSaysHowToAllowIt) {
  job::v1::JobSpec changed = Spec();
  changed.mutable_optimizer()->set_lr(0.001);
  changed.mutable_optimizer()->set_weight_decay(0.1);
  changed.mutable_parallel()->set_data_parallel_size(4);
  const auto kept = MakeNumericsFingerprint(Spec(), "avx2");
  const auto now = MakeNumericsFingerprint(changed, "avx2");
  const absl::Status status = CompareFingerprints(kept, now, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  for (const char* part :
       {"optimizer.lr was 0.0003, is 0.001", "optimizer.weight_decay was not set, is 0.1",
        "layout.data_parallel_size was 2, is 4", "--allow-changed layout,optimizer"}) {
    EXPECT_TRUE(absl::StrContains(status.message(), part)) << part << " in " << status;
  }
  EXPECT_FALSE(absl::StrContains(status.message(), "\n"));
  EXPECT_FALSE(CompareFingerprints(kept, now, {"optimizer"}).ok());
  EXPECT_TRUE(CompareFingerprints(kept, now, {"optimizer", "layout"}).ok());
  EXPECT_TRUE(CompareFingerprints(kept, now, {"all"}).ok());
}

TEST(NumericsTest, AnotherOptimizerIsRefused) {
  job::v1::JobSpec changed = Spec();
  changed.mutable_optimizer()->set_type(job::v1::OPTIMIZER_TYPE_LAMB);
  const absl::Status status = CompareFingerprints(MakeNumericsFingerprint(Spec(), "avx2"),
                                                  MakeNumericsFingerprint(changed, "avx2"), {});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(),
                                "optimizer.type was OPTIMIZER_TYPE_ADAMW, is OPTIMIZER_TYPE_LAMB"))
      << status;
}

TEST(NumericsTest, ManyChangesStayOneReadableLine) {
  const absl::Status status =
      CompareFingerprints(MakeNumericsFingerprint(Spec(), "avx2"),
                          MakeNumericsFingerprint(job::v1::JobSpec(), "avx512"), {});
  EXPECT_TRUE(absl::StrContains(status.message(), "; 7 more; ")) << status;
}

TEST(NumericsTest, ChangedTextIsRefusedByItsFirstDifference) {
  v1::DataFingerprint kept;
  kept.add_file_sha256(std::string(64, 'a'));
  kept.add_file_sha256(std::string(64, 'b'));
  kept.set_total_bytes(100);
  kept.set_held_out_bytes(10);
  kept.set_tokenizer("bytes");
  EXPECT_TRUE(CompareFingerprints(kept, kept, {}).ok());
  v1::DataFingerprint now = kept;
  now.set_file_sha256(1, std::string(64, 'c'));
  const absl::Status changed = CompareFingerprints(kept, now, {"optimizer"});
  EXPECT_EQ(changed.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(changed.message(),
                                "data.files[1] was SHA-256 bbbbbbbbbbbb..., is SHA-256 ccc"))
      << changed;
  EXPECT_TRUE(absl::StrContains(changed.message(), "--allow-changed data")) << changed;
  EXPECT_TRUE(CompareFingerprints(kept, now, {"data"}).ok());
  now = kept;
  now.add_file_sha256(std::string(64, 'd'));
  now.set_total_bytes(150);
  EXPECT_TRUE(absl::StrContains(CompareFingerprints(kept, now, {}).message(),
                                "data.files was 2, is 3; data.total_bytes was 100, is 150"));
}

TEST(NumericsTest, AnotherTokenizerIsRefusedWithBothValues) {
  v1::DataFingerprint kept;
  kept.add_file_sha256(std::string(64, 'a'));
  kept.set_tokenizer("sha256:0123");
  kept.set_total_tokens(1000);
  kept.set_tokens_sha256("one");
  v1::DataFingerprint now = kept;
  now.set_tokenizer("sha256:4567");
  EXPECT_EQ(CompareFingerprints(kept, now, {}),
            absl::FailedPreconditionError(
                "the checkpoint was made under other conditions: data.tokenizer was sha256:0123, "
                "is sha256:4567; restore them, or go on with other bits by --allow-changed data"));
  now.set_total_tokens(900);
  EXPECT_TRUE(absl::StrContains(CompareFingerprints(kept, now, {}).message(),
                                "data.total_tokens was 1000, is 900"));
  EXPECT_TRUE(CompareFingerprints(kept, now, {"data"}).ok());
  // The same tokenizer and counts, but other tokens.
  now = kept;
  now.set_tokens_sha256("other");
  EXPECT_TRUE(absl::StrContains(CompareFingerprints(kept, now, {}).message(),
                                "data.tokens_sha256 was one, is other"));
}

}  // namespace
}  // namespace megascale::checkpoint
