#!/usr/bin/env bash
# Models a training step of train_gpt2_zero on NVIDIA GPUs, only from shapes: prints the launches, bytes
# moved, flops, minimum time on the GPU and expected time of each operation. It measures nothing;
# docs/internals/gpu_model.md explains the assumptions.
# Usage: dev/gpu_model.sh [option [value]]...
#   --model d12        d12 (124M), d24 (350M), d36 (774M), d48 (1558M), or any other of the trainer's -e
#   --batch N          sequences on each GPU (default as in llm.c's recipes: 64 to d24, 32 for d36, else 16)
#   --length 1024      tokens per sequence
#   --gpu h200         h200 or h100 (SXM)
#   --ranks 1          GPUs in one machine, connected by NVLink, with one rank each: 1 to 8
#   --stage 0          ZeRO stage, 0 to 3
#   --recompute 0      the trainer's -r, 0 to 2
#   --summary          prints several models and the effect of options and assumptions; allows only --markdown
#   --markdown         prints tables for a document
#   --measured FILE    compares a profile of one step with the model: a line per kernel name, five columns
#                      separated by tabs: name, launches, ms, bytes read, bytes written (device memory)
# Status: 0, or 2 with one line about the wrong option or file.
set -eu
declare -A is=([model]=d12 [batch]='' [length]=1024 [gpu]=h200 [ranks]=1 [stage]=0 [recompute]=0)
is[measured]=''
summary=0 markdown=0 shaped=''
fail() { echo "gpu_model.sh: $*" >&2; exit 2; }

while [ $# -gt 0 ]; do
    case $1 in
        --help) sed -n '2,/^# Status/s/^# \{0,1\}//p' "$0"; exit ;;
        --markdown) markdown=1 ;;
        --summary) summary=1 ;;
        --model | --batch | --length | --gpu | --ranks | --stage | --recompute | --measured)
            [ $# -gt 1 ] || fail "option $1 needs a value"
            is[${1#--}]=$2 shaped=$1
            shift ;;
        *) fail "option $1 is unknown; --help lists them" ;;
    esac
    shift
done
[ $summary = 0 ] || [ -z "$shaped" ] || fail "option --summary has fixed models: it takes no $shaped"
for name in batch length ranks stage recompute; do
    [[ ${is[$name]} =~ ^(0|[1-9][0-9]{0,6})?$ ]] ||
        fail "option --$name ${is[$name]}: must be a whole number of at most 7 digits"
done
[ -z "${is[measured]}" ] || { [ -f "${is[measured]}" ] && [ -r "${is[measured]}" ]; } ||
    fail "option --measured ${is[measured]}: no such readable file"

awk -v model="${is[model]}" -v batch="${is[batch]}" -v length_="${is[length]}" -v gpu="${is[gpu]}" \
    -v ranks="${is[ranks]}" -v stage="${is[stage]}" -v recompute="${is[recompute]}" \
    -v summary=$summary -v markdown=$markdown -f <(cat <<'AWK'
function fail(text) {
    print "gpu_model.sh: " text >"/dev/stderr"
    exit 2
}
function ceil(x) { return x == int(x) ? x : int(x) + 1 }
function max(a, b) { return a > b ? a : b }
function min(a, b) { return a < b ? a : b }

# ------------------------------------------------------------------------------------------------ assumptions

# Assumptions are printed in this order. vary: a factor that shows the effect of an assumption. doubt: why the
# value may be wrong.
function assume(key, value, unit, text, doubt) {
    assumption[++assumptions] = key
    the[key] = value * (key in vary ? vary[key] : 1)
    unit_of[key] = unit
    text_of[key] = text
    basis_of[key] = doubt == "" ? "assumed" : "doubted: " doubt
}

function assume_gpu(    h200) {
    h200 = gpu == "h200"
    assume("copy", h200 ? 4300 : 3000, "GB/s", "device memory in large copies, read and written added up")
    assume("peak", h200 ? 785 : 725, "TFLOP/s", "bf16 matmuls of large square matrices by cuBLASLt",
           h200 ? "a burst of ten matmuls; a long run may lower the clock" : "")
    assume("memory", h200 ? 150.7 : 85.5, "GB", "device memory")
    assume("processors", 132, "SMs", "multiprocessors of the GPU")
    assume("gap", 1.5, "us", "between two kernels of a stream")
    assume("shortest", 3, "us", "time of the smallest kernel")
    assume("wait", 25, "us", "idle time of the GPU when the host waits for it")
    assume("pcie", 40, "GB/s", "from the host's pinned memory")
    if (ranks == 1) return
    assume("link", 450, "GB/s", "NVLink 4, each way, nominal")
    assume("gathering", 330, "GB/s", "each way, in NCCL's all-gather")
    assume("exchanging", 300, "GB/s", "each way, in NCCL's grouped sends and receives")
    assume("collective", 20, "us", "fixed time of a collective")
    assume("channels", 16, "SMs", "occupied by NCCL's kernels while they run",
           "the share is not linear: 132 CTAs take two waves on 116 SMs, unless SM_COUNT_TARGET is set")
}

# As fractions of the copy speed.
function assume_streams() {
    assume("elementwise", 92, "%", "of copy: residual, GELU, rounding of dQ")
    assume("layernorm", 90, "%", "of copy: layernorm, with residual too")
    assume("layernorm_backward", 85, "%", "of copy: layernorm backward")
    assume("columns", 85, "%", "of copy: sums over rows or ranks")
    assume("softmax", 85, "%", "of copy: softmax with cross-entropy")
    assume("ends", 80, "%", "of copy: encoder, whose rows are scattered")
    assume("norm", 88, "%", "of copy: gradient norm")
    assume("adamw", 90, "%", "of copy: AdamW")
    assume("bulk", 90, "%", "of copy: memset, memcpy")
}

# As fractions of the peak, by shape.
function assume_matmuls() {
    assume("operands", 85, "%", "of copy: memory-bound matmuls")
    assume("wide", untuned ? 89 : 92, "%", "of peak: matmuls with B*T rows")
    assume("gelu", untuned ? 83 : 87, "%", "of peak: epilogues with GELU or its slope",
           "no epilogue has been timed")
    assume("weight", untuned ? 82 : 87, "%", "of peak: gradients of weights, few tiles and long sums",
           "124M has 54 and 72 tiles for 132 SMs: 41 to 55 % without split-K")
    assume("head", untuned ? 92 : 94, "%", "of peak: matmuls of the LM head; rows count in tiles of " TILE)
    assume("attention", 38, "%", "of peak: cuDNN's attention forward, causal flops")
    assume("attention_backward", fast ? 28 : 22, "%", "of peak: its backward" (fast ? "" : ", deterministic"),
           "not based on a measurement")
}

# ----------------------------------------------------------------------------------------------------- shapes

function shape(layers, channels, heads, vocabulary, longest) {
    L = layers + 0; C = channels + 0; NH = heads + 0; V = vocabulary + 0; maxT = longest + 0
}

# Parses the model names of gpt2/model.c.
function parse_model(    i, part) {
    split("d6 6 384 6 d12 12 768 12 d24 24 1024 16 d36 36 1280 20 d48 48 1600 25 d60 60 1920 30", part, " ")
    for (i = 1; i in part; i += 4) {
        if (model != part[i] && model != "gpt2:" part[i]) continue
        return shape(part[i + 1], part[i + 2], part[i + 3], 50257, 1024)
    }
    split("c384 6 6 c768 12 12 c1024 24 16 c1536 24 16 c2048 24 16", part, " ")
    for (i = 1; i in part; i += 3)
        if (model == "gpt3:" part[i]) return shape(part[i + 1], substr(part[i], 2), part[i + 2], 50257, 2048)
    if (model !~ /^l[1-9][0-9]*h[1-9][0-9]*c[1-9][0-9]*v[1-9][0-9]*t[1-9][0-9]*$/)
        fail("option --model " model ": d6 to d60, gpt2:d12, gpt3:c384 to c2048, or like l4h4c128v257t64")
    split(substr(model, 2), part, /[hcvt]/)
    shape(part[1], part[3], part[2], part[4], part[5])
}

function check_options() {
    if (C % NH) fail("option --model " model ": " C " channels cannot be divided among " NH " heads")
    if (C % 8 || C > 2048)
        fail("option --model " model ": C must be a multiple of 8 up to 2048, for rows in registers")
    if (gpu != "h200" && gpu != "h100") fail("option --gpu " gpu ": must be h200 or h100")
    if (ranks < 1 || ranks > 8) fail("option --ranks " ranks ": must be 1 to 8, the GPUs on one NVLink")
    if (stage < 0 || stage > 3) fail("option --stage " stage ": must be 0 to 3")
    if (recompute > 2) fail("option --recompute " recompute ": must be 0 to 2")
    if (batch < 1) fail("option --batch " batch ": must be at least 1")
    if (length_ < 1 || length_ > maxT)
        fail("option --length " length_ ": must be 1 to " maxT ", the model's longest sequence")
}

function set_shape() {
    parse_model()
    if (batch == "") batch = L <= 24 ? 64 : L <= 36 ? 32 : 16
    check_options()
    B = batch + 0; T = length_ + 0; N = ranks + 0; stage += 0; recompute += 0
    Vp = ceil(V / 128) * 128
    hs = C / NH
    BT = B * T
    BTC = 2 * BT * C                        # bytes of activations (B, T, C)
    in_block = 12 * C * C + 13 * C
    embeddings = Vp * C + maxT * C + 2 * C  # with the final layernorm, which is in the same unit
    P = embeddings + L * in_block
}

# States as counted in the ZeRO paper (parameter 2, gradient 2, master and moments 12), buckets and slots.
function states_bytes(of_stage,    buckets) {
    buckets = 2 * (2 * in_block + embeddings)
    if (of_stage == 0) return 16 * P
    if (of_stage == 1) return 4 * P + 12 * P / N
    if (of_stage == 2) return 2 * P + 14 * P / N + buckets
    return 16 * P / N + 2 * buckets
}
function activation_bytes(level,    a_layer) {
    a_layer = level == 0 ? 16 : level == 1 ? 12 : 10
    return BTC * (a_layer * L + 9) + 4 * BT * (4 + NH) * L
}

# Bytes of logits held at once, 1 to 4 GiB: the memory left at the largest stage without recompute, with an
# eighth of the device free. The size must not depend on the stage, because stages must give the same bits.
function logits_bytes(    i, states, left) {
    for (i = 0; i <= 3; i++) states = max(states, states_bytes(i))
    left = the["memory"] * 1e9 * 7 / 8 - states - activation_bytes(0)
    return max(GIB, min(4 * GIB, left))
}
# Splits the batch for the LM head into at most eight parts of whole tiles.
function head_parts() {
    parts = min(8, ceil(2 * BT * Vp / logits_bytes()))
    chunk = min(BT, ceil(ceil(BT / parts) / TILE) * TILE)
    parts = ceil(BT / chunk)
    tile_waste = parts * ceil(chunk / TILE) * TILE / BT
    held = states_bytes(stage) + activation_bytes(recompute) + 2 * chunk * Vp + GIB     # scratch, CUDA's own
}

# ------------------------------------------------------------------------------------------------- operations

# Adds a line to the model. busy: ms that its kernels run; expected: ms that they add to the step.
function line(group, name, runs, read, written, flops, ideal, busy, expected, bound) {
    lines++
    group_of[lines] = group
    name_of[lines] = section ": " name
    runs_of[lines] = runs
    read_of[lines] = read
    written_of[lines] = written
    flops_of[lines] = flops
    ideal_of[lines] = ideal
    busy_of[lines] = busy
    expected_of[lines] = expected
    bound_of[lines] = bound
}

# Adds a kernel and its runs; bytes and flops: per run. group: kernels that a profiler cannot tell
# apart.
function op(group, name, runs, read, written, flops, kind, waste,    memory, compute, expected) {
    if (!runs) return
    memory = (read + written) / the["copy"] * 1e-6                 # ms
    compute = flops / the["peak"] * 1e-9
    expected = memory / (the[flops ? "operands" : kind] / 100)
    if (flops) expected = max(expected, compute * waste / (the[kind] / 100))
    expected = runs * (max(expected, the["shortest"] / 1e3) + the["gap"] / 1e3)
    line(group, name, runs, runs * read, runs * written, runs * flops, runs * max(memory, compute), expected,
         expected, compute > memory ? "compute" : "memory")
}
function stream(group, name, runs, read, written, kind) { op(group, name, runs, read, written, 0, kind, 1) }

# out (m, n) = (m, k) @ (k, n): moves each matrix through memory once, plus the epilogue's reads and writes
function matmul(name, runs, m, n, k, more_read, more_written, kind) {
    op("matmuls", name, runs, 2 * (m * k + k * n) + more_read, 2 * m * n + more_written, 2 * m * n * k, kind,
       kind == "head" ? tile_waste : 1)
}
function weight(name, OC, K) { matmul(name ", weight", L, OC, K, BT, 0, 0, "weight") }

# Sums over rows take two stages: one sum per block, then the sum of those sums.
function partial_sums(name, runs, bytes) {
    stream("partial", name " partial sums", runs, bytes, 0, "columns")
}

# The flops of n matmuls over the queries and keys that a causal mask leaves.
function attention_flops(n) { return n * 2 * hs * B * NH * T * (T + 1) / 2 }

function forward(    stats) {
    section = "forward"
    stats = 8 * BT
    stream("encoder", "encoder", 1, 2 * C * (min(BT, V) + T), BTC, "ends")     # reads a row of wte once
    stream("layernorm", "layernorm 1, first block", 1, BTC, BTC + stats, "layernorm")
    matmul("qkv", L, BT, 3 * C, C, 0, 0, "wide")
    op("attention", "attention", L, 3 * BTC, BTC + 4 * BT * NH, attention_flops(2), "attention", 1)
    matmul("attproj", L, BT, C, C, 0, 0, "wide")
    stream("layernorm", "residual, layernorm 2", L, 2 * BTC, 2 * BTC + stats, "layernorm")
    matmul("fc, GELU", L, BT, 4 * C, C, 0, 4 * BTC, "gelu")
    matmul("fcproj", L, BT, C, 4 * C, 0, 0, "wide")
    stream("layernorm", "residual, next layernorm", L, 2 * BTC, 2 * BTC + stats, "layernorm")
}

# sums: of dweight, dbias and dinp's columns, with two blocks per SM
function layernorm_backward(name, runs,    sums) {
    sums = 3 * 4 * C * the["processors"] * 2
    stream("layernorm_backward", name, runs, 3 * BTC + 8 * BT, BTC + sums, "layernorm_backward")
    partial_sums(name ",", runs, sums)
}

function head(    rows) {
    section = "head"
    rows = BT / parts                       # on average
    matmul("logits", parts, rows, Vp, C, 0, 0, "head")
    stream("softmax", "softmax, cross-entropy", parts, 2 * rows * Vp, 2 * rows * Vp, "softmax")
    matmul("wte, input", parts, rows, C, Vp, 0, 0, "head")
    matmul("wte, weight", parts, Vp, C, rows, 2 * Vp * C * (parts - 1) / parts, 0, "weight")
    stream("loss", "sum of losses", 1, 4 * BT, 8, "columns")
    stream("clear", "dresidual cleared", 1, 0, BTC, "bulk")
    layernorm_backward("final layernorm backward", 1)
}

# The gradient of a bias of width * C columns: each of ten blocks per SM sums 256 of them.
function bias(name, width,    sums) {
    sums = 4 * 256 * the["processors"] * 10
    stream("bias", name ", bias", L, width * BTC, sums, "columns")
    partial_sums(name ", bias,", L, sums)
}

function backward(    wte) {
    section = "backward"
    if (recompute >= 1) stream("gelu", "GELU again", L, 4 * BTC, 4 * BTC, "elementwise")
    matmul("fcproj, input, GELU", L, BT, 4 * C, C, 4 * BTC, 0, "gelu")
    weight("fcproj", C, 4 * C)
    if (recompute >= 2) stream("layernorm", "layernorms again", 2 * L, BTC, BTC + 8 * BT, "layernorm")
    matmul("fc, input", L, BT, C, 4 * C, 0, 0, "wide")
    weight("fc", 4 * C, C)
    bias("fc", 4)
    layernorm_backward("layernorm 2 backward", L)
    matmul("attproj, input", L, BT, C, C, 0, 0, "wide")
    weight("attproj", C, C)
    attention_backward()
    matmul("qkv, input", L, BT, C, 3 * C, 0, 0, "wide")
    weight("qkv", 3 * C, C)
    bias("qkv", 3)
    layernorm_backward("layernorm 1 backward", L)
    stream("partial", "fcproj and attproj, bias from sums", 2 * L, 4 * C, 2 * C, "columns")
    wte = 2 * C * min(BT, V)
    stream("encoder_backward", "encoder backward, wte", 1, BTC + wte, wte, "ends")
    stream("encoder_backward", "encoder backward, wpe", 1, BTC + 2 * C * T, 2 * C * T, "ends")
}

# cuDNN's kernels: sums of dout * out for each row; the main kernel; then dQ, which is rounded from sums in
# fp32 or, if deterministic, a matmul of the scores' gradients that the main kernel stored: those on and below
# the diagonal, in blocks of 128.
function attention_backward(    rows, runs, part, sums, kept) {
    rows = fast ? B : min(B, max(1, int(GIB / 2 / (2 * NH * T * T))))    # 512 MiB of stored scores at a time
    while (B % rows) rows--
    runs = L * B / rows
    part = rows / B
    sums = part * 4 * BT * NH
    kept = part * (fast ? 2 * BTC : B * NH * T * (T + min(T, 128)))
    stream("attention_backward", "attention, sums of dout * out", runs, part * 2 * BTC, sums, "columns")
    op("attention_backward", "attention", runs, part * 4 * BTC + 2 * sums, part * 2 * BTC + kept,
       part * attention_flops(fast ? 5 : 4), "attention_backward", 1)
    if (fast) stream("attention_backward", "attention, dQ rounded", runs, kept, part * BTC, "elementwise")
    else op("attention_backward", "attention, dQ from kept scores", runs, kept + part * BTC, part * BTC,
            part * attention_flops(1), "attention_backward", 1)
}

# ------------------------------------------------------------------------------------------------- the plugin

function plugin() {
    section = "plugin"
    clear_gradients()
    if (N > 1) communicate()
    else copy_alone()
    norm()
    adamw(stage > 0 ? N : 1)
    host()
}

# One launch per unit, only for the tensors that backward adds to.
function clear_gradients(    bytes) {
    bytes = 2 * (13 * C * L + 2 * C + maxT * C)
    stream("clear", "gradients cleared", L + 1, 0, bytes / (L + 1), "bulk")
}

# Each rank sums the squares of its part.
function norm() { stream("norm", "gradient norm", 1, 2 * P / N, 0, "norm") }

# Per element, reads 14 bytes (gradient, master, moments) and writes 14 (parameter, master, moments). shards:
# shards of a unit. One launch per unit.
function adamw(shards,    all) {
    all = 14 * P / shards
    stream("adamw", "AdamW", L + 1, all / (L + 1), all / (L + 1), "adamw")
}

function host(    bytes, ms) {
    bytes = 4 * (3 * BT + 3 * min(BT, V))   # tokens, targets, positions by token, three numbers per token
    ms = bytes / the["pcie"] * 1e-6
    line("copies", "tokens from the host", 2 + parts, 0, bytes, 0, ms, ms, ms + (2 + parts) / 200, "PCIe")
    line("copies", "the host waits for loss, norm", 2, 8 * (L + 2), 0, 0, 0, 0, the["wait"] / 500, "latency")
}

# A single rank runs the same hooks; they copy its shards into slots, and buckets into the shard.
function copy_alone(    unit, copied) {
    unit = 2 * P / (L + 1)                  # on average
    copied = 2 * (2 * P - stays()) / (2 * L)
    if (stage == 3) stream("copies", "parameters into slots", 2 * L, copied, copied, "bulk")
    if (stage >= 2) stream("sums", "buckets into the shard", L + 1, unit, unit, "columns")
}

# ms for a rank to receive, or to send, its part of these elements at `speed` GB/s
function link_ms(elems, speed) { return 2 * elems * (N - 1) / N / speed * 1e-6 }
# A reduction runs in rounds as large as its staging buffers, 256 MiB over all ranks.
function rounds(elems) { return ceil(2 * elems / N / (GIB / 4 / N)) }

# At stage 3 the embeddings and the last block stay gathered from forward to backward.
function stays() { return stage == 3 ? embeddings + in_block : 0 }

# times: gathers per unit. Stage 3 gathers for forward and for backward, stages 1 and 2 after the update, and
# stage 0 gathers the reduced gradients. elems: the elements of the units for which the step waits, the
# embeddings and the first block. From stage 1 on, however, the AdamW of other units hides gathers that follow
# their unit's AdamW: every gather at stages 1 and 2, and that of the embeddings at stage 3. The gather of the
# first block starts when the next step begins.
function communicate(    times, units, elems, runs, gathered, hidden, exposed) {
    times = stage == 3 ? 2 : 1
    units = stage == 0 ? 2 : stage == 3 ? 1 : 0
    elems = units == 2 ? embeddings + in_block : units * in_block
    runs = times * (L + 1) - units - (stage == 3 ? 2 : 0)
    gathered = times * P - stays() - elems
    exposed = link_ms(elems, the["gathering"]) + units * the["collective"] / 1e3
    hidden = link_ms(gathered, the["gathering"]) + runs * the["collective"] / 1e3
    collectives("gathers", "hidden", runs, 2 * gathered, 0, hidden, slowdown(hidden))
    collectives("gathers", "exposed", units, 2 * elems, link_ms(elems, the["link"]), exposed, exposed)
    reduce(embeddings + in_block)
}
function collectives(group, how, runs, bytes, ideal, busy, expected) {
    if (!runs) return
    line(group, group ", " how, runs, bytes, bytes, 0, ideal, busy, expected, ideal ? "NVLink" : "SMs")
}
# The time that computation loses to a concurrent collective, by the collective's share of the SMs.
function slowdown(hidden) { return hidden * the["channels"] / the["processors"] }

# In each round, the ranks exchange shards, then sum them in tree order.
function reduce(ends,    runs, last_runs, sent, hidden, exposed) {
    runs = (L - 1) * rounds(in_block)
    last_runs = rounds(embeddings) + rounds(in_block)
    sent = 2 * (N - 1) / N                  # bytes per element
    hidden = link_ms(P - ends, the["exchanging"]) + runs * the["collective"] / 1e3
    exposed = link_ms(ends, the["exchanging"]) + last_runs * the["collective"] / 1e3
    collectives("reductions", "hidden", runs, sent * (P - ends), 0, hidden, slowdown(hidden))
    collectives("reductions", "exposed", last_runs, sent * ends, link_ms(ends, the["link"]), exposed, exposed)
    runs += last_runs
    stream("sums", "sums of the ranks' gradients", runs, 2 * P / runs, 2 * P / N / runs, "columns")
}

# ---------------------------------------------------------------------------------------------------- results

function build(    i) {
    lines = assumptions = 0
    assume_gpu(); assume_streams(); assume_matmuls()
    head_parts()
    forward(); head(); backward(); plugin()
    ideal = expected = launches = read = written = flops = 0
    for (i = 1; i <= lines; i++) {
        ideal += ideal_of[i]; expected += expected_of[i]; launches += runs_of[i]
        read += read_of[i]; written += written_of[i]; flops += flops_of[i]
    }
    tokens_a_s = BT * N / expected * 1e3
    tflops = (6 * (P - maxT * C) + 12 * L * C * T) * BT / expected * 1e-9       # as in the trainer's bar
}

function width_of(w) { return w < 0 ? "-" (-w) : w }
# Prints a table row of tab-separated cells, with heading()'s widths, which are negative for text.
function row(text,    i, n, cell, out) {
    n = split(text, cell, "\t")
    for (i = 1; i <= n; i++) {
        if (markdown) out = out "| " cell[i] " "
        else out = out (i > 1 ? "  " : "") sprintf("%" width_of(width[i]) "s", cell[i])
    }
    sub(/ +$/, "", out)
    print out (markdown ? " |" : "")
}
function heading(text, widths,    i, n, rule) {
    n = split(widths, width, " ")
    row(text)
    for (i = 1; i <= n; i++) rule = rule (width[i] < 0 ? "|---" : "|---:")
    if (markdown) print rule "|"
}
function not_measured() { print "A model, not a measurement: no GPU has been measured yet.\n" }

function print_title() {
    printf "%s, %.0f parameters, B %d, T %d, bf16, on %s %s, stage %d, recompute %d\n", model, P, B, T,
        (N > 1) ? N : "one", toupper(gpu), stage, recompute
    if (markdown) print ""
    printf "about %.0f of %.0f GB of a GPU's memory%s; logits of %d of %d tokens at a time\n\n", held / 1e9,
        the["memory"], held < the["memory"] * 1e9 ? "" : ": it does not fit", chunk, BT
    if (measured == "") not_measured()
    else print "A model; the last table compares it with the measurement.\n"
}
function print_assumptions(    i, key) {
    heading("value\tunit\tassumption\tbasis", "8 -8 -62 -100")
    for (i = 1; i <= assumptions; i++) {
        key = assumption[i]
        row(the[key] "\t" unit_of[key] "\t" text_of[key] "\t" basis_of[key])
    }
    print ""
}
function print_line(name, n, r, w, f, least, ms, bound) {
    row(sprintf("%s\t%.0f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%s", name, n, r / 1e9, w / 1e9, f / 1e12, least, ms,
                bound))
}
function print_model(    i) {
    heading("operation\tlaunches\tread GB\twritten GB\tTFLOP\tideal ms\texpected ms\tbound by",
            "-50 8 8 10 8 8 11 -8")
    for (i = 1; i <= lines; i++)
        print_line(name_of[i], runs_of[i], read_of[i], written_of[i], flops_of[i], ideal_of[i],
                   expected_of[i], bound_of[i])
    print_line("sum", launches, read, written, flops, ideal, expected, "")
    printf "\nexpected: %.0f tokens/s, %.0f TFLOP/s per GPU as the trainer counts them\n", tokens_a_s, tflops
}

# ---------------------------------------------------------------------------------------------------- summary

function set_case(a_model, a_gpu, n, a_stage) {
    model = a_model; gpu = a_gpu; ranks = n; stage = a_stage
    batch = ""
    recompute = untuned = fast = 0
    set_shape()
    build()
}
# The two columns in the tables below: 124M on one H200, and 1558M on eight H100.
function set_column(column) {
    if (column == 1) set_case("d12", "h200", 1, 0)
    else set_case("d48", "h100", 8, 3)
}

function print_case(name, a_model, a_gpu, n, a_stage) {
    set_case(a_model, a_gpu, n, a_stage)
    row(sprintf("%s\t%d\t%.1f\t%.1f\t%.0f\t%.0f\t%.0f", name, B, ideal, expected, tokens_a_s, tflops,
                held / 1e9))
}
# Prints an estimate made by hand for the previous case.
function print_second_estimate(least, most) {
    row(sprintf("the same, second estimate\t%d\t\t%d to %d\t%.0f to %.0f\t%.0f to %.0f\t", B, least, most,
                tokens_a_s * expected / most, tokens_a_s * expected / least, tflops * expected / most,
                tflops * expected / least))
}
function print_cases() {
    heading("now, recompute 0\tB\tideal ms\texpected ms\ttokens/s\tTFLOP/s\tGB", "-34 4 8 11 16 10 5")
    print_case("124M, one H200", "d12", "h200", 1, 0)
    print_second_estimate(110, 122)
    print_case("350M, one H200", "d24", "h200", 1, 0)
    print_case("774M, one H200", "d36", "h200", 1, 0)
    print_case("1558M, one H200", "d48", "h200", 1, 0)
    print_case("124M, one H200, stage 3", "d12", "h200", 1, 3)
    print_case("124M, eight H100, stage 1", "d12", "h100", 8, 1)
    print_case("1558M, eight H100, stage 3", "d48", "h100", 8, 3)
    print "\nDoubted: 124M on eight H100, because llm.c's public run of 45 minutes takes 138 ms per step.\n"
}

# Prints how many ms longer a step takes with another option.
function print_option(text, option,    column, before, longer) {
    for (column = 1; column <= 2; column++) {
        set_column(column)
        before = expected
        untuned = option == "untuned"; recompute = option == "recompute"; fast = option == "fast"
        build()
        longer = longer sprintf("\t%.1f", expected - before)
    }
    row(text longer)
}

# Prints how many ms less a step takes if some assumptions are off by this factor.
function print_worth(text, keys, factor,    column, i, key, before, less) {
    split(keys, key, " ")
    for (column = 1; column <= 2; column++) {
        set_column(column)
        before = expected
        for (i in key) vary[key[i]] = factor
        build()
        less = less sprintf("\t%.1f", before - expected)
        split("", vary)
    }
    row(text less)
}
function print_summary() {
    not_measured()
    print_cases()
    heading("additional ms per step\t124M, one H200\t1558M, eight H100", "-78 15 18")
    print_option("without --tune: each matmul with the heuristic's first algorithm", "untuned")
    print_option("-r 1: GELU recomputed", "recompute")
    print_option("--attention cudnn-fast", "fast")
    print ""
    heading("ms per step saved, if better than assumed\t124M, one H200\t1558M, eight H100", "-78 15 18")
    print_worth("matmuls 5 % faster", "wide gelu weight head", 1.05)
    print_worth("device memory 5 % faster", "copy", 1.05)
    print_worth("attention 25 % faster, both ways", "attention attention_backward", 1.25)
    print_worth("no gaps between kernels", "gap", 0)
    print_worth("NCCL 25 % faster", "gathering exchanging", 1.25)
}

# --------------------------------------------------------------------------------------------------- measured

# Returns the model's group for a kernel's demangled name in a profile, or "". The first pattern that matches
# counts.
function group_of_kernel(name,    i, n, rule) {
    if (name !~ /nccl/ && name ~ /sdpa|flash|fmha|cudnn/)
        return name ~ /bprop|bwd|backward|dgrad|dot_do_o|convert_dq|dq_/ ? "attention_backward" : "attention"
    n = split("nccl.*AllGather gathers  nccl.*(SendRecv|ReduceScatter) reductions  nccl -" \
              "  softmax_crossentropy softmax" \
              "  softmax_backward attention_backward  softmax|cached_kernel|keep_kernel attention" \
              "  encoder.*backward encoder_backward  encoder encoder" \
              "  layernorm.*backward layernorm_backward  layernorm layernorm  elementwise gelu" \
              "  partial_sums|bias_from_sums partial  column_sums bias  add_squares norm" \
              "  adamw adamw  sum_ranks sums  nvjet|gemm|cutlass|cublas|splitK|xmma matmuls" \
              "  memset|Memset|clear clear  memcpy|Memcpy|convert copies  sum_kernel loss", rule, " +")
    for (i = 1; i < n; i += 2)
        if (name ~ rule[i]) return rule[i + 1] == "-" ? "" : rule[i + 1]
    return ""
}

function is_number(x) { return x ~ /^[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?$/ }

function take_kernel(text, at,    n, i, cell, group) {
    n = split(text, cell, "\t")
    if (at == 1 && n == 5 && !is_number(cell[2])) return                # the heading
    for (i = 2; i <= 5; i++)
        if (n != 5 || !is_number(cell[i]))
            fail("option --measured " measured ", line " at \
                 ": needs name, launches, ms, bytes read and bytes written, separated by tabs")
    kernels++
    group = group_of_kernel(cell[1])
    if (group == "") unknown[++unknowns] = cell[2] " launches, " cell[3] " ms: " cell[1]
    seen_launches[group] += cell[2]
    seen_ms[group] += cell[3]
    seen_bytes[group] += cell[4] + cell[5]
    all_launches += cell[2]
    all_ms += cell[3]
    all_bytes += cell[4] + cell[5]
}
function take_measured(    text, at) {
    while ((getline text < measured) > 0) {
        sub(/\r$/, "", text)
        at++
        if (text != "") take_kernel(text, at)
    }
    close(measured)
    if (!kernels) fail("option --measured " measured ": it has no kernel")
}

function sum_groups(    i, g) {
    for (i = 1; i <= lines; i++) {
        g = group_of[i]
        want_launches[g] += runs_of[i]
        want_ms[g] += busy_of[i]
        want_bytes[g] += read_of[i] + written_of[i]
        want_flops[g] += flops_of[i]
    }
}

function per_second(g) {
    if (!seen_ms[g]) return "-"
    if (want_flops[g]) return sprintf("%.0f TFLOP/s", want_flops[g] / seen_ms[g] / 1e9)
    return seen_bytes[g] ? sprintf("%.0f GB/s", seen_bytes[g] / seen_ms[g] / 1e6) : "-"
}
function ratio(a, b) { return a && b ? sprintf("%.2f", a / b) : "-" }
function pair_row(text, a_launches, b_launches, a_ms, b_ms, a_bytes, b_bytes, speed) {
    row(text "\t" sprintf("%.0f\t%.0f\t%.3f\t%.3f\t%s\t%.3f\t%.3f", a_launches, b_launches, a_ms, b_ms,
                          ratio(b_ms, a_ms), a_bytes / 1e9, b_bytes / 1e9) "\t" speed)
}
function measured_row(text, g) {
    if (!want_launches[g] && !seen_launches[g]) return
    pair_row(text, want_launches[g], seen_launches[g], want_ms[g], seen_ms[g], want_bytes[g], seen_bytes[g],
             per_second(g))
    sum_launches += want_launches[g]
    sum_ms += want_ms[g]
    sum_bytes += want_bytes[g]
}

function print_measured(    i, n, part) {
    sum_groups()
    print ""
    heading("kernels\tlaunches\tmeasured\texpected ms\tmeasured\tratio\texpected GB\tmeasured\tspeed",
            "-40 8 8 11 8 6 11 8 -14")
    n = split("encoder;encoder;layernorm;layernorm, with residual too;" \
              "attention;attention;gelu;GELU;matmuls;all matmuls;softmax;softmax, cross-entropy;" \
              "loss;sum of losses;layernorm_backward;layernorm backward;bias;separate biases;" \
              "partial;partial sums;attention_backward;attention backward;" \
              "encoder_backward;encoder backward;clear;memory cleared;copies;memcpy;" \
              "gathers;NCCL, gathers;reductions;NCCL, reductions;" \
              "sums;sums of ranks' parts;norm;gradient norm;adamw;AdamW;;not placed", part, ";")
    for (i = 1; i < n; i += 2) measured_row(part[i + 1], part[i])
    pair_row("sum", sum_launches, all_launches, sum_ms, all_ms, sum_bytes, all_bytes, "")
    for (i = 1; i <= unknowns; i++) print (i == 1 ? "\n" : "") "not placed: " unknown[i]
}

BEGIN {
    TILE = 256
    GIB = 1073741824
    measured = ARGC > 1 ? ARGV[1] : ""
    fast = 0
    if (summary) {
        print_summary()
        exit
    }
    set_shape()
    build()
    if (measured != "") take_measured()
    print_title()
    print_assumptions()
    print_model()
    if (measured != "") print_measured()
}
AWK
) ${is[measured]:+"${is[measured]}"}
