# make            build ./moe-run and ./moe-bench (CUDA is used if nvcc is found; CUDA=0 leaves it out)
# make run        build, then let the demo model inside the program tell a story
# make check      all tests; ends with one line "N passed, N failed"
# make check-gpu  those that use a GPU, alone; fails where there is none
# make bench      what this machine does: tokenizers, block decoders, synthetic files
# make fuzz       fuzz the loader for FUZZ_SECONDS=600; FUZZER=afl uses AFL++ instead of libFuzzer
# make install    into $(DESTDIR)$(PREFIX); PREFIX is /usr/local unless you say PREFIX=$HOME/.local
# make clean      remove everything that was built
#
# CUDA_ARCHS="80 90"       compile the GPU side for these architectures (default: those of the GPUs here, or all)
# URING=0                  without liburing: the drive is read by threads that call pread
# SAN=address,undefined    sanitizers (also SAN=thread); objects of each configuration stay apart
# DEPS=dir                 extra prefix with usr/include and usr/lib for headers and libraries
# V=1 shows commands, WERROR=1 makes warnings errors

.SUFFIXES:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all

# ---- what is here ------------------------------------------------------------------------------
PREFIX     ?= /usr/local
NVCC       ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA       ?= $(if $(SAN),0,$(if $(NVCC),1,0))
# The architectures of the GPUs that are here; without any, all that the kernels are written for.
ALL_ARCHS  := 75 80 86 89 90 120
ifeq ($(origin CUDA_ARCHS),undefined)
CUDA_ARCHS := $(or $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | sort -un),$(ALL_ARCHS))
endif
URING      ?= 1
ifeq ($(origin CC),default)
CC         := gcc
endif

# Missing packages are named and, where that is allowed, installed: see tools/bootstrap.sh. Goals that
# build nothing, and make -n, need none.
ifneq ($(filter-out clean help,$(or $(MAKECMDGOALS),all)),)
ifeq ($(CUDA)$(NVCC),1)
$(error CUDA=1, but there is no nvcc on the PATH or in /usr/local/cuda/bin; CUDA=0 builds for the CPU alone)
endif
ifeq ($(findstring n,$(firstword -$(MAKEFLAGS))),)
BOOTSTRAP := $(shell DEPS='$(DEPS)' URING='$(URING)' CUDA='$(CUDA)' CC='$(CC)' tools/bootstrap.sh >&2; echo $$?)
ifneq ($(BOOTSTRAP),0)
$(error packages are missing: see above)
endif
endif
TARGET  := $(shell $(CC) -dumpmachine 2>/dev/null)
endif
VERSION := $(or $(shell git describe --always --dirty 2>/dev/null),unknown)

# All cores, unless -j says otherwise (which wins, here and in a make that calls this one).
ifeq ($(filter -j% --jobserver%,$(MAKEFLAGS))$(filter-out 0,$(MAKELEVEL)),)
MAKEFLAGS += -j$(or $(shell nproc 2>/dev/null),1)
endif

# Configurations never share objects. (No trailing comment after a value: make keeps the spaces before it.)
comma := ,
B     := build$(if $(filter 0,$(CUDA)),-cpu)$(if $(filter 0,$(URING)),-nouring)$(if $(SAN),-$(subst $(comma),-,$(SAN)))$(BUILD_SUFFIX)
Q     := $(if $(V),,@)

OPT     ?= -O2 -g
CFLAGS  += -std=c11 $(OPT) -Wall -Wextra -Wshadow -Wvla -Wmissing-prototypes -Wpointer-arith
LIBDIRS := $(wildcard $(DEPS)/usr/lib/$(TARGET) $(DEPS)/usr/lib/$(subst -pc-,-,$(TARGET)) $(DEPS)/usr/lib)
# -ffp-contract=off is part of the arithmetic contract: the same bits on every processor.
ALL_CFLAGS  = -D_GNU_SOURCE -I. -MMD -MP -ffp-contract=off -fopenmp $(CFLAGS) \
              $(if $(DEPS),-isystem $(DEPS)/usr/include) $(if $(WERROR),-Werror) \
              $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer)
ALL_LDFLAGS = -fopenmp $(LDFLAGS) $(if $(SAN),-fsanitize=$(SAN)) $(addprefix -L,$(if $(DEPS),$(LIBDIRS))) \
              $(addprefix -Wl$(comma)-rpath$(comma),$(if $(DEPS),$(abspath $(LIBDIRS))))
LDLIBS     += $(or $(if $(DEPS),,$(shell pkg-config --libs jansson libedit 2>/dev/null)),-ljansson -ledit) \
              $(if $(filter-out 0,$(URING)),-luring) -lm
NVCC_FLAGS  = -O3 -std=c++17 -I. -Xcompiler -Wall,-Wextra$(if $(WERROR),$(comma)-Werror --Werror all-warnings) \
              $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$a,code=sm_$a) \
              -gencode arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword $(CUDA_ARCHS))

# ---- sources: variants are chosen here, by file -------------------------------------------------
# Kernels of the processor that is compiled for; each file with the flags of its instruction set.
CPU     := $(firstword $(subst -, ,$(TARGET)))
OTHERS  := $(if $(filter x86_64,$(CPU)),,engine/cpu/x86_%.c) $(if $(filter aarch64,$(CPU)),,engine/cpu/arm_%.c)
LIB_C   := $(wildcard loader/*.c tiers/*.c moe/*.c engine/*.c engine/cpu/*.c engine/models/*.c engine/text/*.c)
LIB_C   := $(filter-out $(OTHERS) tiers/reader_uring$(if $(filter-out 0,$(URING)),_stub).c,$(LIB_C))
CLI_C   := $(filter-out cli/moe_run.c cli/moe_bench.c,$(wildcard cli/*.c))
TESTS   := $(patsubst tests/%.c,%,$(wildcard tests/test_*.c))
ifeq ($(CUDA),1)
CUDA_HOME := $(patsubst %/bin/,%,$(dir $(realpath $(NVCC))))
GPU_OBJ   := $(patsubst %,$B/%.o,$(wildcard cuda/*.cu))
LDLIBS    += -L$(CUDA_HOME)/lib64 -lcudart_static -lstdc++ -ldl -lrt -lpthread
else
GPU_OBJ   := $B/cuda/gpu_stub.c.o
endif
# What is not a product of weights is compiled once for any processor, and once for each of these.
LOOPS    := activation attention deltanet rows
LOOP_ISA := $(if $(filter x86_64,$(CPU)),avx2 avx512)$(if $(filter aarch64,$(CPU)),neon)
LIB_OBJ := $(LIB_C:%=$B/%.o) $(foreach i,$(LOOP_ISA),$(LOOPS:%=$B/engine/cpu/%.$i.c.o)) $(GPU_OBJ)
CLI_OBJ := $(CLI_C:%=$B/%.o) $B/cli/demo_model.S.o
UNPACKED := $(patsubst tests/golden/%.xz,$B/golden/%,$(wildcard tests/golden/*/*.xz))

# ---- programs ----------------------------------------------------------------------------------
.PHONY: all run check check-gpu test bench fuzz install clean help tests FORCE
all: moe-run moe-bench

help:
	@sed -n '/^#/!q;s/^# \{0,1\}//p' Makefile

# The programs at the root are those of the configuration that was made last.
moe-run moe-bench: %: $B/% FORCE
	@cmp -s $< $@ || { cp $< $@ && echo "  ready   ./$@ ($(if $(filter 1,$(CUDA)),CUDA for sm_$(subst $() ,$(comma),$(CUDA_ARCHS)),CPU only)$(if $(SAN),$(comma) $(SAN)))"; }

$B/moe-run:   $B/cli/moe_run.c.o   $(CLI_OBJ) $(LIB_OBJ)
$B/moe-bench: $B/cli/moe_bench.c.o $(CLI_OBJ) $(LIB_OBJ)
$B/moe-run $B/moe-bench:
	$(if $V,,@echo "  link    $@")
	$Q$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LDLIBS)

$B/%.c.o: %.c
	@mkdir -p $(@D)
	$(if $V,,@echo "  cc      $<")
	$Q$(CC) $(ALL_CFLAGS) $(CPPFLAGS) -c -o $@ $<

# The demo model is inside the programs: as bytes, by .incbin.
$B/%.S.o: %.S
	@mkdir -p $(@D)
	$(if $V,,@echo "  as      $<")
	$Q$(CC) -I. -MMD -MP -c -o $@ $<
$B/cli/demo_model.S.o: tests/models/demo-qwen3next-Q4_K_M.gguf

# Loops over numbers: the optimiser may unroll and vectorise them, never reorder a sum. (Under
# sanitizers that would take gcc minutes for a file.)
$B/engine/cpu/%.c.o $B/engine/kv.c.o $B/loader/quant.c.o: OPT += $(if $(SAN),-O1,-O3)

# No file but these may use what only some processors have; engine/cpu/dispatch.c decides who runs.
FLAGS_neon    := -march=armv8-a
FLAGS_dotprod := -march=armv8.2-a+dotprod -falign-loops=32
FLAGS_i8mm    := -march=armv8.2-a+dotprod+i8mm -falign-loops=32
FLAGS_avx2    := -mavx2 -mfma -mf16c
FLAGS_avx512  := $(FLAGS_avx2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mprefer-vector-width=512
FLAGS_amx     := $(FLAGS_avx512) -mamx-tile -mamx-int8
isa_of         = $(FLAGS_$(word 2,$(subst _, ,$(notdir $(1:.c.o=)))))
$B/engine/cpu/arm_%.c.o $B/engine/cpu/x86_%.c.o: CFLAGS += $(call isa_of,$@)

define LOOP_RULE
$B/engine/cpu/%.$1.c.o: CFLAGS += $(FLAGS_$1) -DISA=$1
$B/engine/cpu/%.$1.c.o: engine/cpu/%.c
	@mkdir -p $$(@D)
	$(if $V,,@echo "  cc      $$< ($1)")
	$Q$(CC) $$(ALL_CFLAGS) $$(CPPFLAGS) -c -o $$@ $$<
endef
$(foreach i,$(LOOP_ISA),$(eval $(call LOOP_RULE,$i)))

$B/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(if $V,,@echo "  nvcc    $< (sm_$(subst $() ,$(comma),$(CUDA_ARCHS)))")
	$Q$(NVCC) $(NVCC_FLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

# The version changes with each commit: only the file that prints it is built again.
$B/cli/commands.c.o: CPPFLAGS += -DMOE_VERSION='"$(VERSION)"'
$B/cli/commands.c.o: $B/version
$B/version: FORCE
	@mkdir -p $(@D)
	@echo '$(VERSION)' | cmp -s - $@ || echo '$(VERSION)' > $@

-include $(shell find $B -name '*.d' 2>/dev/null)

# ---- make run, bench, install -------------------------------------------------------------------
run: all
	./moe-run -p "Tell me a story." -n 200 --top-p 0.9 --frequency-penalty 0.25 --seed 10

bench: all $(UNPACKED)
	tools/bench.sh $B

install: all
	install -d '$(DESTDIR)$(PREFIX)/bin' '$(DESTDIR)$(PREFIX)/share/moe'
	install -m 755 moe-run moe-bench '$(DESTDIR)$(PREFIX)/bin'
	install -m 644 models.txt tests/models/demo-qwen3next-Q4_K_M.gguf tests/models/demo-gptoss-MXFP4.gguf \
		'$(DESTDIR)$(PREFIX)/share/moe'

clean:
	rm -rf build build-* moe-run moe-bench

# ---- tests --------------------------------------------------------------------------------------
TEST_BIN := $(TESTS:%=$B/tests/%)
# Kernel code on the host: needs nvcc, but no GPU.
TEST_CU  := $(if $(filter 1,$(CUDA)),$(patsubst tests/%.cu,%,$(wildcard tests/test_*.cu)))
TEST_CU_BIN := $(TEST_CU:%=$B/tests/%)
# What a test needs besides the library and the harness.
$B/tests/test_model $B/tests/test_model_refuse: $B/tests/model_maker.c.o
$B/tests/test_chat $B/tests/test_chat_parse: $B/tests/chat_maker.c.o
$B/tests/test_kernels $(TEST_CU_BIN): $B/tests/weight_maker.c.o
$B/tests/test_lane $B/tests/test_gpu_experts: $B/tests/ffn_golden.c.o
$(addprefix $B/tests/test_,lane expert_store foresight): $(patsubst %,$B/tests/%_maker.c.o,store model weight)
$(filter $B/tests/test_gpu%,$(TEST_BIN)): $B/tests/gpu_fixture.c.o $B/tests/weight_maker.c.o
$B/tests/test_state $B/tests/test_state_file: $B/tests/state_twin.c.o
$B/tests/test_forward $B/tests/test_places: $B/tests/places.c.o
$B/tests/test_conversation: $B/cli/conversation.c.o
$B/tests/test_plan_check: $B/cli/plan_check.c.o
$B/tests/test_answer_view: $(addprefix $B/cli/,$(addsuffix .c.o,answer_view output interrupt console))
$B/tests/test_synth: $(filter $B/cli/synth%,$(CLI_OBJ)) $B/cli/console.c.o
$(TEST_BIN): $B/tests/%: $B/tests/%.c.o
$(TEST_CU_BIN): $B/tests/%: $B/tests/%.cu.o
$(TEST_BIN) $(TEST_CU_BIN): $B/tests/test.c.o $(LIB_OBJ)
	$(if $V,,@echo "  link    $@")
	$Q$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LDLIBS)

# Without libFuzzer the same target runs under tests/fuzz_main.c, a small mutator of our own.
$B/tests/fuzz_gguf: $B/tests/fuzz_gguf.c.o $B/tests/fuzz_main.c.o $B/tests/test.c.o $(LIB_OBJ)
	$(if $V,,@echo "  link    $@")
	$Q$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LDLIBS)

# Small good files for the fuzzers to damage.
$B/tests/fuzz_seeds: $B/tests/fuzz_seeds.c.o $B/tests/model_maker.c.o $B/tests/test.c.o $(LIB_OBJ)
	$(if $V,,@echo "  link    $@")
	$Q$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LDLIBS)

$(UNPACKED): $B/golden/%: tests/golden/%.xz
	@mkdir -p $(@D)
	$Qxz -dc $< > $@

tests: $(TEST_BIN) $(TEST_CU_BIN) $B/tests/fuzz_gguf $B/tests/fuzz_seeds $(UNPACKED)

check test: all tests
	$Qtools/run_tests.sh $B $(TESTS) $(TEST_CU)

# One after the other: each has the device, and the CPU for its references, to itself.
GPU_TESTS := $(filter test_gpu% test_forward test_places test_expert_store test_state test_space,$(TESTS)) $(TEST_CU)
check-gpu: $(GPU_TESTS:%=$B/tests/%) $(UNPACKED)
	$QONLY_GPU=1 tools/run_tests.sh $B $(GPU_TESTS)

# ---- fuzzing ------------------------------------------------------------------------------------
FUZZ_SECONDS ?= 600
FUZZER       ?= libfuzzer
fuzz:
	tools/fuzz.sh $(FUZZER) $(FUZZ_SECONDS)
