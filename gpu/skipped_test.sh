#!/usr/bin/env bash
# Stands for a test of gpu/ or of its users where the CUDA toolkit is missing: see gpu/rules.bzl.
echo "SKIPPED: nvcc is not installed"
