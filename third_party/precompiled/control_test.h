// As control.h, and GoogleTest.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "third_party/precompiled/control.h"
