#include "runtime/job/known_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace megascale::job {
namespace {

using testing::HasSubstr;

TEST(KnownFieldsTest, WhatThisVersionKnowsIsKnown) {
  v1::JobSpec spec;
  EXPECT_TRUE(CheckIsKnown(spec).ok());
  spec.set_name("job");
  spec.mutable_data()->add_files("/text");
  spec.mutable_train()->set_precision(v1::PRECISION_FP32);
  spec.mutable_fault()->mutable_start_timeout()->set_seconds(60);
  EXPECT_TRUE(CheckIsKnown(spec).ok());
}

TEST(KnownFieldsTest, AFieldOfANewerVersionIsNamed) {
  v1::JobSpec spec;
  spec.mutable_train()
      ->GetReflection()
      ->MutableUnknownFields(spec.mutable_train())
      ->AddVarint(777, 1);
  const absl::Status status = CheckIsKnown(spec);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("train: has field 777, which megascale "));
  v1::JobSpec top;
  top.GetReflection()->MutableUnknownFields(&top)->AddVarint(778, 1);
  EXPECT_THAT(std::string(CheckIsKnown(top).message()), HasSubstr("job: has field 778"));
}

TEST(KnownFieldsTest, AValueOfANewerVersionIsNoDefault) {
  v1::JobSpec spec;
  spec.mutable_optimizer()->set_type(static_cast<v1::OptimizerType>(99));
  EXPECT_THAT(std::string(CheckIsKnown(spec).message()), HasSubstr("optimizer.type: has value 99"));
}

}  // namespace
}  // namespace megascale::job
