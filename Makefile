# make            build ./moe-run, ./moe-serve, ./moe-bench and ./moe-quant: for the CPU, and for the GPUs that nvidia-smi finds if nvcc is here
# make run        build, then let the demo model inside the program tell a story
# make check      all tests; ends with one line "N passed, N failed"
# make check-gpu  only the tests that use a GPU; fails without a GPU
# make check-clients  the server with the packages openai, anthropic and ollama, from PyPI
# make check-page the server's page in a real browser, if there is Chromium; SHOTS=FOLDER takes pictures
# make bench      speeds of this machine: memory, weight kernels, the demo model, a synthetic file
# make nightly    every configuration, all rounds, sanitizers, all architectures; hours, needs no GPU
# make fuzz       fuzz what reads files and requests, each for FUZZ_SECONDS=600; FUZZ=TARGET one of them;
#                 FUZZER=afl uses AFL++ instead of libFuzzer
# make install    into $(DESTDIR)$(PREFIX); PREFIX is /usr/local unless you say PREFIX=$HOME/.local
# make deb        a Debian package of it, in the build's folder
# make clean      remove everything that was built, in every configuration
#
# CUDA=1                   build the GPU side even without a GPU; CUDA=0: never build it
# CUDA_ARCHS="80 90"       compile it for these, and add PTX of the newest, which drivers translate for later GPUs.
#                          Default: the GPUs that are here, or else ptx: PTX of compute_75 alone, for any GPU.
#                          all: every one of 75 80 86 89 90 120. One that is older than the GPU works, too:
#                          make check-gpu CUDA_ARCHS=75 tests on any GPU what one of sm_75 would run.
# CC=clang, OPT="-O0 -g"   another compiler, other optimisation; CFLAGS, CPPFLAGS, LDFLAGS and LDLIBS are added
# URING=0                  without liburing: the drive is read by threads that call pread
# CURL=0                   without libcurl: no moe-run pull. Default: 1 if its headers are here
# ONLY="test_a test_b.sh"  these tests alone
# LONG=1                   tests with all rounds, seeds and combinations of cases: minutes instead of one
# TEST_THREADS=64          tests as on a machine of 64 cores
# SCHEMAS=100              answers of as many random JSON schemas, instead of a handful
# SAN=address,undefined    sanitizers (also SAN=thread), without CUDA
# SAN_LOOPS=0              with SAN: loops over numbers are compiled without it; ten times faster, for long soaks
# DEPS=dir                 extra prefix with usr/include and usr/lib for headers and libraries
# V=1 shows commands, WERROR=1 makes warnings errors
#
# Every configuration has a folder of its own: build (with CUDA), build-cpu, build-cpu-clang, build-cpu-thread, ...

.SUFFIXES:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all

# ---- what is here ------------------------------------------------------------------------------
PREFIX    ?= /usr/local
URING     ?= 1
NVCC      ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
ifeq ($(origin CC),default)
CC        := gcc
endif
# Names and lines, for profilers and the place of a crash. All that a debugger likes to know, which is
# OPT="-O0 -g", would be a third of the time of a build.
USUAL_OPT := -O2 -g1
OPT       ?= $(USUAL_OPT)
Q         := $(if $(V),,@)
comma     := ,
space     := $() $()
quoted     = '$(subst ','\'',$1)'
BUILDS    := $(filter-out clean help,$(or $(MAKECMDGOALS),all))

# The architectures of the GPUs that are here: "89 90". (Under WSL nvidia-smi is not on the PATH.)
ifeq ($(filter 0,$(CUDA))$(SAN)$(CUDA_ARCHS)$(if $(BUILDS),,none),)
GPUS := $(shell PATH="$$PATH:/usr/lib/wsl/lib" nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | \
                sed -n 's/^\([0-9]*\)\.\([0-9]\)$$/\1\2/p' | awk '$$1 >= 75' | sort -un)
endif
ifeq ($(filter 0 1,$(CUDA)),)
override CUDA := $(if $(SAN),0,$(if $(CUDA_ARCHS)$(and $(NVCC),$(GPUS)),1,0))
# why it is 0, and what would make it 1
NO_GPU := $(if $(SAN),,$(if $(NVCC),: nvcc is here$(comma) but no GPU of sm_75 or later (make CUDA=1 builds for GPUs),$(if \
            $(GPUS),: a GPU is here$(comma) but no nvcc (install a CUDA toolkit to use it))))
endif

# What the kernels are compiled for: ARCHS, and PTX of the newest of them, which the driver translates
# when a program first runs on a GPU that it has no code for. Where no GPU says what is wanted, PTX of
# the oldest architecture is all there is: quick to build, and it runs on every GPU, if slower than
# code made for it. The same for a GPU that this nvcc does not know.
ALL_ARCHS := 75 80 86 89 90 120
ifeq ($(CUDA),1)
ifeq ($(strip $(CUDA_ARCHS)),)
CUDA_ARCHS := $(or $(if $(GPUS),$(filter $(patsubst compute_%,%,$(shell $(NVCC) --list-gpu-arch)),$(GPUS))),ptx)
endif
ARCHS   := $(filter-out ptx,$(subst $(comma), ,$(CUDA_ARCHS:all=$(ALL_ARCHS))))
ARCHS   := $(if $(ARCHS),$(shell printf '%s\n' $(ARCHS) | sort -nu))
PTX     := $(or $(lastword $(ARCHS)),$(firstword $(ALL_ARCHS)))
FOR_GPU := $(if $(ARCHS),sm_$(subst $(space),$(comma),$(ARCHS)),PTX of compute_$(PTX))
endif

# tools/bootstrap.sh names missing packages. Only make run and make check install them. Goals that build
# nothing, and make -n, need none.
ifneq ($(BUILDS),)
ifeq ($(CUDA)$(NVCC),1)
$(error CUDA is asked for, but there is no nvcc on the PATH or in /usr/local/cuda/bin; CUDA=0 builds for the CPU alone)
endif
ifeq ($(CUDA)$(filter check-gpu,$(BUILDS)),0check-gpu)
$(error check-gpu needs a GPU and nvcc, and this would be built for the CPU alone$(NO_GPU))
endif
ifeq ($(findstring n,$(firstword -$(MAKEFLAGS))),)
BOOTSTRAP := $(shell DEPS=$(call quoted,$(DEPS)) URING='$(URING)' CUDA='$(CUDA)' CC=$(call quoted,$(CC)) \
                     CURL='$(CURL)' INSTALL=$(if $(filter run check,$(BUILDS)),1,0) tools/bootstrap.sh >&2; echo $$?)
ifneq ($(BOOTSTRAP),0)
$(error packages are missing: see above)
endif
endif
CURL_SAID := $(CURL)
ifeq ($(CURL),)
CURL   := $(shell $(CC) $(CPPFLAGS) $(if $(DEPS),-isystem $(call quoted,$(DEPS)/usr/include)) -include curl/curl.h \
                  -E -xc -o /dev/null /dev/null 2>/dev/null && echo 1 || echo 0)
endif
TARGET := $(shell $(CC) -dumpmachine 2>/dev/null)
CPU    := $(firstword $(subst -, ,$(TARGET)))
$(info $()  for     $(CPU) with $(CC), $(if $(filter 1,$(CUDA)),CUDA: $(FOR_GPU)$(if \
         $(ARCHS),, for any GPU (CUDA_ARCHS=90 makes faster code for sm_90)),CPU alone$(NO_GPU)))
$(if $(CURL_SAID)$(filter 1,$(CURL)),,$(info $()  without moe-run pull: that needs libcurl4-openssl-dev))
endif

# A tarball has no history, but git archive notes there which commit it is.
VERSION := $(or $(if $(wildcard .git),$(shell git describe --always --dirty 2>/dev/null)),$(filter-out \
             $$Format%,$(file <tools/archived_version)),unknown)

# All cores, unless -j says otherwise (which wins, here and in a make that calls this one).
ifeq ($(filter -j% --jobserver%,$(MAKEFLAGS))$(filter-out 0,$(MAKELEVEL)),)
MAKEFLAGS += -j$(or $(shell nproc 2>/dev/null),1)
endif

# ---- where it goes -----------------------------------------------------------------------------
# Configurations never share objects: the folder's name says what differs from the default, with a
# checksum where that would be too long. (No trailing comment after a value: make keeps the spaces
# before it.)
checksum = -$(firstword $(shell printf %s $(call quoted,$1) | cksum))
CONFIG  := $(if $(filter 0,$(CUDA)),-cpu) $(if $(filter 0,$(URING)),-nouring) $(if $(filter 0,$(CURL_SAID)),-nocurl) $(SAN:%=-$(subst $(comma),-,$(SAN))) \
           $(if $(SAN),$(if $(filter 0,$(SAN_LOOPS)),-fastloops))
ifneq ($(CC),gcc)
CONFIG  += -$(notdir $(firstword $(CC)))$(if $(findstring /,$(CC))$(word 2,$(CC)),$(call checksum,$(CC)))
endif
ifneq ($(OPT),$(USUAL_OPT))
CONFIG  += $(or $(if $(filter-out -O0 -O1 -O2 -O3 -Og -Os -g,$(OPT)),$(call checksum,$(OPT)),$(OPT)),-O0)
endif
ifneq ($(strip $(CFLAGS)$(CPPFLAGS)$(LDFLAGS)$(LDLIBS)$(DEPS)),)
CONFIG  += $(call checksum,$(CFLAGS)|$(CPPFLAGS)|$(LDFLAGS)|$(LDLIBS)|$(DEPS))
endif
B       := build$(subst $(space),,$(CONFIG))$(BUILD_SUFFIX)
# Objects of kernels, in a folder for each set of architectures.
G       := $B/$(if $(ARCHS),sm_$(subst $(space),_,$(ARCHS)),ptx_$(PTX))

# ---- flags -------------------------------------------------------------------------------------
# OPT_MORE, FILE_FLAGS and FILE_SAN are a file's own. -ffp-contract=off is part of the arithmetic
# contract: the same bits on every processor.
OPT_MORE   :=
FILE_FLAGS :=
FILE_SAN   := $(SAN)
ALL_CFLAGS  = -std=c11 -D_GNU_SOURCE -I. -MMD -MP -Wall -Wextra -Wshadow -Wvla -Wmissing-prototypes -Wpointer-arith \
              $(OPT) $(OPT_MORE) $(CPPFLAGS) $(CFLAGS) $(FILE_FLAGS) -ffp-contract=off -fopenmp $(DEPS_CFLAGS) \
              $(if $(WERROR),-Werror) $(if $(FILE_SAN),-fsanitize=$(FILE_SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer)
ALL_LDFLAGS = -fopenmp $(LDFLAGS) $(if $(SAN),-fsanitize=$(SAN)) $(DEPS_LDFLAGS)
ALL_LDLIBS  = $(or $(if $(DEPS),,$(shell pkg-config --libs jansson libedit 2>/dev/null)),-ljansson -ledit) \
              $(if $(filter-out 0,$(URING)),-luring) \
              -Wl$(comma)--push-state$(comma)--as-needed -lmicrohttpd $(if $(filter-out 0,$(CURL)),-lcurl) -Wl$(comma)--pop-state \
              -lm $(CUDA_LIBS) $(LDLIBS)
ifneq ($(DEPS),)
DEPS_DIR   := $(shell cd $(call quoted,$(DEPS)) 2>/dev/null && pwd)
ifeq ($(DEPS_DIR),)
$(error DEPS=$(DEPS): no such folder)
endif
DEPS_LIBS    := $(addprefix usr/lib,/$(TARGET) /$(subst -pc-,-,$(TARGET)) /)
DEPS_CFLAGS  := -isystem '$(DEPS_DIR)/usr/include'
DEPS_LDFLAGS := $(foreach d,$(DEPS_LIBS),-L'$(DEPS_DIR)/$d' -Xlinker -rpath -Xlinker '$(DEPS_DIR)/$d')
endif
# One run of the compiler makes the PTX of an architecture and the code from it. sm_86 and sm_89 take
# the PTX of sm_80 where there is one: no line of ours differs between them, and a build for all takes
# an eighth less time. Files with OWN_90 := a use what sm_90 has and no later one: its code is made as
# sm_90a, PTX as for all.
OWN_90     :=
ptx_of      = $(if $(and $(filter 86 89,$1),$(filter 80,$(ARCHS))),80,$1)
NVCC_FLAGS  = -O3 -std=c++17 -I. -Xcompiler -Wall,-Wextra$(if $(WERROR),$(comma)-Werror --Werror all-warnings) \
              $(foreach a,$(ARCHS:90=90$(OWN_90)),-gencode arch=compute_$(call ptx_of,$a),code=sm_$a) \
              -gencode arch=compute_$(PTX),code=compute_$(PTX)

# ---- sources: variants are chosen here, by file -------------------------------------------------
# Kernels of the processor that is compiled for; each file with the flags of its instruction set.
OTHERS  := $(if $(filter x86_64,$(CPU)),,engine/cpu/x86_%.c) $(if $(filter aarch64,$(CPU)),,engine/cpu/arm_%.c) \
           %/reader_uring$(if $(filter-out 0,$(URING)),_stub).c %/fetch$(if $(filter-out 0,$(CURL)),_stub).c
# What takes longest comes first: kernels.
LIB_C   := $(filter-out $(OTHERS),$(wildcard $(foreach d,engine loader tiers moe,$d/*/*/*.c $d/*/*.c $d/*.c)))
CLI_C   := $(filter-out $(OTHERS) cli/moe_run.c cli/moe_bench.c cli/moe_quant.c cli/moe_serve.c,$(wildcard cli/*.c cli/*/*.c))
TESTS   := $(filter-out test_sim_%,$(patsubst tests/%.c,%,$(wildcard tests/test_*.c)))
ifeq ($(CUDA),1)
CUDA_HOME := $(patsubst %/bin/,%,$(dir $(realpath $(NVCC))))
CUDA_LIBS := -L$(CUDA_HOME)/lib64 -lcudart_static -lstdc++ -ldl -lrt -lpthread
GPU_OBJ   := $(patsubst %,$G/%.o,$(wildcard cuda/*.cu cuda/*/*.cu)) $B/archs
else
GPU_OBJ   := $B/cuda/gpu_stub.c.o
endif
# Everything but products of weights is compiled once for any processor, and once for each of these.
LOOPS    := activation attention deltanet rows
LOOP_ISA := $(if $(filter x86_64,$(CPU)),avx2 avx512)$(if $(filter aarch64,$(CPU)),neon)
LIB_OBJ  := $(GPU_OBJ) $(foreach i,$(LOOP_ISA),$(LOOPS:%=$B/engine/cpu/%.$i.c.o)) $(LIB_C:%=$B/%.o)
CLI_OBJ  := $(CLI_C:%=$B/%.o) $B/cli/demo_model.S.o $B/cli/serve/page_files.S.o
# Objects by the names of their files, wherever these are: names are unique.
obj      = $(filter $(addprefix %/,$(addsuffix .c.o,$1)),$(LIB_OBJ) $(CLI_OBJ))
# Golden data that is packed: files of their own, and folders of small ones.
PACKED   := $(wildcard tests/golden/*/*.xz)
UNPACKED := $(patsubst tests/golden/%.xz,$B/golden/%,$(PACKED:.tar.xz=.unpacked.xz))

# ---- programs ----------------------------------------------------------------------------------
.PHONY: all run check check-gpu check-clients check-page nightly test bench fuzz install deb clean help tests FORCE
all: moe-run moe-bench moe-quant moe-serve

help:
	@sed -n '/^#/!q;s/^# \{0,1\}//p' Makefile

# The programs at the root are those of the configuration that was made last.
moe-run moe-bench moe-quant moe-serve: %: $B/% FORCE
	@cmp -s $< $@ || { cp -f $< $@ && echo "  ready   ./$@ ($(if $(FOR_GPU),CUDA: $(FOR_GPU),CPU alone)$(if $(SAN),$(comma) $(SAN)))"; }

define LINK
$(if $V,,@echo "  link    $@")
@mkdir -p $(@D)
$Q$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(ALL_LDLIBS)
endef

# Archives: a program takes what it uses, so moe-bench does not load libcurl and libmicrohttpd.
$B/engine.a: $(LIB_OBJ)
$B/cli.a: $(CLI_OBJ)
$B/engine.a $B/cli.a $B/fixtures.a:
	$Qrm -f $@ && $(AR) rcsT $@ $(filter %.o,$^)
$(patsubst %,$B/moe-%,run bench quant serve): $B/moe-%: $B/cli/moe_%.c.o $B/cli.a $B/engine.a
	$(LINK)

define COMPILE
@mkdir -p $(@D)
$(if $V,,@echo "  cc      $<")
$Q$(CC) $(ALL_CFLAGS) -c -o $@ $<
endef

$B/%.c.o: %.c
	$(COMPILE)

# The demo model and the server's page are inside the programs: as bytes, by .incbin.
$B/%.S.o: %.S
	@mkdir -p $(@D)
	$(if $V,,@echo "  as      $<")
	$Q$(CC) -I. -MMD -MP -c -o $@ $<
$B/cli/demo_model.S.o: tests/models/demo-qwen3next-mtp.gguf
$B/cli/serve/page_files.S.o: $(wildcard cli/serve/page/*)

# Searches for the scales of blocks. The flag lets compilers use vectors where a value is picked from
# several; it changes no result, only which exceptions of the processor are noted.
QUANTISE := $(call obj,quantise quantise_fp4 quantise_q8_0 quantise_q4_k)
$(QUANTISE): FILE_FLAGS := -fno-trapping-math

# Loops over numbers: the optimiser may unroll and vectorise them, never reorder a sum. Not under
# sanitizers, where gcc would take minutes for a file, and not with OPT set.
LOOPS := $B/engine/cpu/%.c.o $(QUANTISE) $(call obj,kv quant)
ifeq ($(SAN_LOOPS),0)
$(LOOPS): FILE_SAN :=
endif
ifeq ($(OPT),$(USUAL_OPT))
$(LOOPS): OPT_MORE = $(if $(FILE_SAN),-O1,-O3)
# Tests run for less time than the optimiser would. (Sanitizers with -O1 warn of what cannot be.)
$B/tests/%.c.o: OPT_MORE = $(if $(SAN),,-O1)
endif

# No file but these may use what only some processors have; engine/cpu/dispatch.c decides which run.
FLAGS_neon    := -march=armv8-a
FLAGS_dotprod := -march=armv8.2-a+dotprod -falign-loops=32
FLAGS_i8mm    := -march=armv8.2-a+dotprod+i8mm -falign-loops=32
FLAGS_avx2    := -mavx2 -mfma -mf16c
FLAGS_avxvnni := $(FLAGS_avx2) -mavxvnni
FLAGS_avx512  := $(FLAGS_avx2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mprefer-vector-width=512
FLAGS_amx     := $(FLAGS_avx512) -mamx-tile -mamx-int8
isa_of         = $(FLAGS_$(word 2,$(subst _, ,$(notdir $(1:.c.o=)))))
$B/engine/cpu/arm_%.c.o $B/engine/cpu/x86_%.c.o: FILE_FLAGS = $(call isa_of,$@)

define LOOP_RULE
$B/engine/cpu/%.$1.c.o: FILE_FLAGS := $(FLAGS_$1) -DISA=$1
$B/engine/cpu/%.$1.c.o: engine/cpu/%.c
	@mkdir -p $$(@D)
	$(if $V,,@echo "  cc      $$< ($1)")
	$Q$(CC) $$(ALL_CFLAGS) -c -o $$@ $$<
endef
$(foreach i,$(LOOP_ISA),$(eval $(call LOOP_RULE,$i)))

$(patsubst %,$G/%.o,$(wildcard cuda/gemm*.cu)): OWN_90 := a
# Where the vendor's libraries are, if the system does not know.
$G/cuda/vendor_gemm.cu.o: NVCC_FLAGS += -DTOOLKIT_LIB='"$(CUDA_HOME)/lib64"'
$G/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(if $V,,@echo "  nvcc    $<")
	$Q$(NVCC) $(NVCC_FLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

# The version changes with each commit: only the file that prints it is built again. Other
# architectures need other kernels, but no other object: programs are linked again.
$(call obj,commands): FILE_FLAGS := -DMOE_VERSION='"$(VERSION)"'
$(call obj,commands): $B/version
$B/version: TEXT := $(VERSION)
$B/archs: TEXT := $(ARCHS)
$B/version $B/archs: FORCE
	@mkdir -p $(@D)
	@echo '$(TEXT)' | cmp -s - $@ || echo '$(TEXT)' > $@

-include $(shell find $B -name '*.d' 2>/dev/null)

# ---- make run, bench, install -------------------------------------------------------------------
run: all
	./moe-run -p "Tell me a story." -n 200 --top-p 0.9 --frequency-penalty 0.25 --seed 10

bench: all
	tools/bench.sh $B

install: all
	packaging/install.sh $B $(call quoted,$(DESTDIR)) $(call quoted,$(PREFIX))

deb: all
	$Qpackaging/make_deb.sh $B $(call quoted,$(VERSION)) $B

clean:
	rm -rf build build-* moe-run moe-bench moe-quant moe-serve

# ---- tests --------------------------------------------------------------------------------------
TEST_BIN := $(TESTS:%=$B/tests/%)
# Without CUDA, these run once more with a GPU that is simulated: test_sim_vram_cache is test_vram_cache.c,
# linked with tests/sim_gpu*.c instead of gpu_stub.c. Three are for that GPU alone: test_sim_plan.c is about what is
# taken of its memory, test_sim_taken.c about a token left in flight, test_sim_devices.c about two of them at once.
SIM_OF   := vram_cache families measure layer_overhead prompts cache_routing cache_cost perf_counts forward state expert_store mem_space gpu \
            gpu_experts_with_host gpu_experts_partial gpu_contract gpu_attention gpu_delta gpu_network gpu_normed gpu_prefer gpu_rules gpu_stage gpu_sampler prefix_cache sessions rows draws drafts mtp walks context_growth go_back
SIM_ALONE := test_sim_plan test_sim_taken test_sim_devices
SIMS     := $(if $(filter 0,$(CUDA)),$(SIM_OF:%=test_sim_%) $(SIM_ALONE))
SIM_BIN  := $(SIMS:%=$B/tests/%)
SIM_OBJ  := $(patsubst %,$B/%.o,$(wildcard tests/sim_gpu*.c))
both      = $(foreach t,$1,$B/tests/test_$t $(filter $B/tests/test_sim_$t,$(SIM_BIN)))
# The programs with that GPU, for tests/test_cli_gpu.sh and tests/test_cli_page.sh.
SIM_PROG := $(if $(SIMS),$B/sim/moe-run $B/sim/moe-bench $B/sim/moe-serve)
# Kernel code on the host: needs nvcc, but no GPU.
TEST_CU  := $(if $(filter 1,$(CUDA)),$(patsubst tests/%.cu,%,$(wildcard tests/test_*.cu)))
TEST_CU_BIN := $(TEST_CU:%=$B/tests/%)
# Parts of several tests. bad_disk replaces functions of the system: it is in no archive.
MAINS    := small_model soak_client http_client pull_server fuzz_seeds
$B/fixtures.a: $(patsubst %,$B/%.o,$(filter-out tests/test_% tests/fuzz_% tests/sim_gpu% tests/bad_disk.c \
               $(MAINS:%=tests/%.c),$(wildcard tests/*.c)))
$(addprefix $B/tests/test_,state_file usage_profile output_file prefix_drive): $B/tests/bad_disk.c.o
$B/tests/test_synth_families $(call both,cache_routing perf_counts): ALL_LDFLAGS += -Wl,--wrap=router_select
$B/tests/test_prefix_drive: ALL_LDFLAGS += -Wl,--wrap=prefix_tree_next
$(call both,prompts): ALL_LDFLAGS += -Wl,--wrap=experts_cpu_run
$(call both,draws): ALL_LDFLAGS += -Wl,--wrap=forward_logits
$(call both,layer_overhead): ALL_LDFLAGS += -Wl,--wrap=gpu_record_end,--wrap=gpu_replay
$(TEST_BIN): $B/tests/%: $B/tests/%.c.o
$(SIM_OF:%=$B/tests/test_sim_%): $B/tests/test_sim_%: $B/tests/test_%.c.o
$(SIM_ALONE:%=$B/tests/%): $B/tests/%: $B/tests/%.c.o
$(TEST_CU_BIN): $B/tests/%: $G/tests/%.cu.o
$(TEST_BIN) $(TEST_CU_BIN): $B/fixtures.a $B/cli.a $B/engine.a
	$(LINK)
# Without libcurl, which takes longer to load than most of what these are asked for.
$(SIM_PROG): $B/sim/moe-%: $B/cli/moe_%.c.o $B/cli/pull/fetch_stub.c.o
# Objects come before the archives, so that the simulated GPU is found first.
$(SIM_BIN) $(SIM_PROG): $(SIM_OBJ) $B/fixtures.a $B/cli.a $B/engine.a
	$(LINK)

# Without libFuzzer (SAN=fuzzer,...) the targets run under tests/fuzz_main.c, a small mutator of our own.
FUZZ_ALL := fuzz_gguf fuzz_chat fuzz_schema fuzz_request fuzz_prefix_file
FUZZERS  := $(FUZZ_ALL:%=$B/tests/%)
$(FUZZERS): $B/tests/%: $B/tests/%.c.o $(if $(findstring fuzzer,$(SAN)),,$B/tests/fuzz_main.c.o) $B/fixtures.a $B/cli.a $B/engine.a
	$(LINK)

# Programs of tests: clients, a server to pull from, small models of families, good files to damage.
$(MAINS:%=$B/tests/%): $B/tests/%: $B/tests/%.c.o $B/fixtures.a $B/cli.a $B/engine.a
	$(LINK)

$(filter-out %.unpacked,$(UNPACKED)): $B/golden/%: tests/golden/%.xz
	@mkdir -p $(@D)
	$Qxz -dc $< > $@
$(filter %.unpacked,$(UNPACKED)): $B/golden/%.unpacked: tests/golden/%.tar.xz
	@mkdir -p $(@D)
	$Qxz -dc $< | tar -xof - -C $(@D)
	@touch $@

FOR_SCRIPTS := $(SIM_PROG) $(MAINS:%=$B/tests/%)
tests: $(TEST_BIN) $(TEST_CU_BIN) $(SIM_BIN) $(FUZZERS) $(FOR_SCRIPTS) $(UNPACKED)

GPU_TESTS := $(filter test_gpu% test_forward test_families test_measure test_layer_overhead test_vram_cache test_prompts test_cache_routing test_perf_counts \
                      test_expert_store test_state test_mem_space test_prefix_cache test_prefix_drive test_sessions test_rows test_drafts test_mtp test_walks test_go_back test_context_growth,$(TESTS)) $(TEST_CU)
# Scripts come first: they wait half of their time. Those that take longest begin the list; LONG_SH is
# for LONG=1. (Thread sanitizer: four tokens a second.)
GPU_PARTS := $(addprefix test_cli_gpu.sh:,qwen3next gptoss glm4moe gemma4 speeds)
LONG_SH   := test_cli_soak.sh test_cli_page.sh test_packaging.sh
SLOW_SH   := $(if $(LONG),$(LONG_SH)) $(addprefix test_cli_,serve.sh chat.sh $(if $(SIMS),gpu.sh:sim) memory.sh files.sh run.sh)
SCRIPTS   := $(if $(findstring thread,$(SAN)),,$(SLOW_SH) $(if $(filter 1,$(CUDA)),$(GPU_PARTS))) \
             $(filter-out $(SLOW_SH) $(LONG_SH) test_cli_gpu.sh,$(notdir $(wildcard tests/test_*.sh)))
# Programs that take longest, among the rest in the order of their names.
SLOW      := $(addprefix test_,sim_prompts forward sim_forward sim_state experts_cpu prefix_drive prefix_cache reader grammar_answers)
RUN_TESTS  = GPU_TESTS='$(GPU_TESTS) $(GPU_PARTS)' TEST_LONG='$(LONG)' TEST_THREADS='$(TEST_THREADS)' TEST_SAN='$(SAN)' tools/run_tests.sh $B
check test: all $(if $(ONLY),$(patsubst %,$B/tests/%,$(filter-out %.sh,$(ONLY))) \
                             $(if $(filter %.sh fuzz_%,$(ONLY)),$(FOR_SCRIPTS)) $(UNPACKED),tests)
	$Q$(RUN_TESTS) $(or $(ONLY),$(SCRIPTS) $(filter $(SIMS) $(TESTS),$(SLOW)) $(filter-out $(SLOW),$(SIMS) $(TESTS)) \
	    $(TEST_CU) $(FUZZ_ALL) check_layers.sh check_words.sh)

check-gpu: all $(GPU_TESTS:%=$B/tests/%) $B/tests/small_model $(UNPACKED)
	$QONLY_GPU=1 $(RUN_TESTS) $(GPU_TESTS) $(GPU_PARTS)

# The packages that people use, from PyPI, in a folder of their own.
check-clients: all $B/clients/ready
	$Q$B/clients/bin/python tests/check_clients.py $B
$B/clients/ready: tests/clients.txt
	$Qpython3 -m venv $B/clients && $B/clients/bin/pip install -q --disable-pip-version-check -r $< && touch $@

check-page: all $(filter %/moe-serve %/moe-run,$(SIM_PROG))
	$Qpython3 tests/check_page.py $B $(SHOTS)

nightly:
	+$Qtools/build_matrix.sh nightly

# ---- fuzzing ------------------------------------------------------------------------------------
FUZZ_SECONDS ?= 600
FUZZER       ?= libfuzzer
fuzz: $B/tests/fuzz_seeds
	+tools/fuzz.sh $(FUZZER) $(FUZZ_SECONDS) $< $(or $(FUZZ),$(FUZZ_ALL))
