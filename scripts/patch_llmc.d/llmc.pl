# The edits of llm.c's published versions: train_gpt2.c, train_gpt2.cu for --cuda, and llmc/dataloader.h. They
# call zero.h and the headers in llmc_zero/.
use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

our (@L, @tensors, %in_blocks, %removed);       # %removed: file -> a pattern for uses of fields that go
my $OPTIMIZER = ' is llm.c\'s AdamW; docs/porting.md, "Optimizers other than AdamW", keeps another';
my $UNIT = 'and pointers to its tensors come from z_param() and z_grad()';

sub pointer ($struct, $name, $offset) {
    return ($struct eq 'params' ? 'z_param(' : 'z_grad(') . 'Z_' . uc($name) . ", $offset)";
}

# Reads the names of the tensors in memory order, and which of them every layer has.
sub read_tensors {
    hook('the table of tensors, z_table, must have a row for every tensor');
    my $struct = one(qr/^\} ParameterTensors;/);
    only_llmc((all(qr/^typedef struct/, 0, $struct))[-1] - 1, $struct);
    for my $function (qw(fill_in_parameter_sizes malloc_and_point_parameters)) {
        in($function);
        only_llmc(one(qr/$function/), one(qr/^\}/));
    }
    @tensors = join('', @L[one(qr/malloc_and_point/) .. one(qr/^\}/)]) =~ /&params->(\w+)/g;
    in('fill_in_parameter_sizes');
    %in_blocks = map { $L[$_] =~ /\[(\d+)\] = (.*);/ ? ($tensors[$1], scalar($2 =~ /\bL\b/)) : () }
        all(qr/param_sizes\[\d+\] = /);
    in('');
}

# The trainer's table of tensors, and the header that has the rest.
sub with_table ($header, %decayed) {
    my (@numbers, @rows);
    for my $name (@tensors) {
        push @numbers, 'Z_' . uc($name) . ',';
        push @rows, "{ \"$name\", " . ($in_blocks{$name} ? 'Z_BLOCKS, ' : 'Z_EMBEDDING, ')
            . ($decayed{$name} // 0) . ' },';
    }
    my $wrapped = sub ($n, $end, @items) {
        my $lines = '';
        $lines .= '    ' . join(' ', splice @items, 0, $n) . (@items ? $end : '') . "\n" while @items;
        return $lines;
    };
    return "enum { // the tensors, as in ParameterTensors\n" . $wrapped->(6, '', @numbers)
        . "    Z_TENSORS\n};\n#define Z_TABLE \\\n" . $wrapped->(4, ' \\', @rows)
        . "#include \"llmc_zero/$header\"";
}

# A function's copies of ParameterTensors start empty; each use of a unit fills in the pointers to its
# tensors, which are valid only while the unit is open.
sub local_tensors ($first = '') {
    my @copies = all(qr/ParameterTensors (?:params|grads) = model->/);
    instead_each(map { $_ => $L[$_] =~ s/^\s*(ParameterTensors \w+ =).*\n/$1 {0};/r
        . ($_ == $copies[0] ? $first : '') } @copies);
}

my $USE = qr/\b(params|grads)\.(\w+)/;
sub uses ($from, $to, $in_blocks = 0) {
    my $wanted = sub { grep { $in_blocks ? $in_blocks{$_} : !$in_blocks{$_} } @_ };
    return grep { $wanted->($L[$_] =~ /\b(?:params|grads)\.(\w+)/g) } all($USE, $from, $to);
}

# Adds lines around the statements that name tensors of one unit, and pointers to the tensors.
sub use_of_unit ($lines, $before, $after) {
    my (%seen, @pointers);
    for (map { $L[$_] } @$lines) {
        while (/$USE/g) { push @pointers, "$1.$2 = " . pointer($1, $2, 0) . ';' if !$seen{"$1.$2"}++ }
    }
    before(statement_start($lines->[0]), @$before, @pointers);
    after(statement_end($lines->[-1]), @$after) if @$after;
}

# Treats lines as one use of the embedding unit, which has all tensors outside the layers.
sub embedding_use ($from, $to, $way) {
    use_of_unit([ uses($from, $to) ], map { ["z_check(zero_${_}_$way(z, Z_EMBEDDING));"] } qw(pre post));
}

# Returns the first and the last line of the loop over the layers.
sub layer_loop {
    my $loop = one(qr/^    for \(int l = (?:0; l < L|L\s*-\s*1; l >= 0); l/);
    return ($loop, block_end($loop));
}

# A pass of train_gpt2.c: the embedding unit is used before and after the loop over the layers.
sub each_use ($way) {
    in("gpt2_$way");
    hook("before a unit's parameters are used comes its pre hook, after its last use its post hook, $UNIT");
    local_tensors($way eq 'forward' ? "\nz_begin_pass();" : "\nz_one_backward();");
    my ($start, $end) = layer_loop();
    embedding_use(one(qr/^\w.*gpt2_$way/), $start, $way);
    layer_pointers($start, $end, "z_check(zero_pre_$way(z, Z_BLOCKS + l));\n");
    my ($last) = reverse grep { $L[$_] =~ /\S/ } $start .. $end - 1;
    after($last, "z_check(zero_post_$way(z, Z_BLOCKS + l));");
    embedding_use($end, one(qr/^\}/), $way);
}

# Replaces the pointers to a layer's tensors; z_param() and z_grad() check their offsets. Any other use of the
# tensors in the loop does not compile.
sub layer_pointers ($from, $to, $hook = '') {
    my $pointer = qr/^\s*((?:const )?floatX?\* )(\w+) = (params|grads)\.(\w+) \+ ([^;]*);/;
    my @lines = all($pointer, $from, $to);
    my %new;
    for (@lines) { $new{$_} = "$1$2 = " . pointer($3, $4, $5) . ';' if $L[$_] =~ $pointer }
    $new{ $lines[0] } = "enum { params, grads }; // hides the tensors\n$hook$new{ $lines[0] }";
    instead_each(%new);
}

# A training pass begins with a call. gpt2_forward() begins the others, which all ranks run.
sub begin_training ($micro) {
    hook("z_begin_train($micro, inputs, bytes) comes directly before the forward pass of a training step; "
         . 'all ranks run every pass');
    my ($line) = reverse all(qr/gpt2_forward\(/);
    my ($inputs, $B, $T) = (split /, */, $L[$line] =~ s/\).*//sr)[1, -2, -1];
    before($line, "z_begin_train($micro, $inputs, (size_t)$B * $T * sizeof(*$inputs));");
}

# The ranks compare their inputs: the parameters, and the files of the data loaders.
sub compare_inputs {
    hook('after the data loaders are ready, z_same_data(name, B, T, pattern) compares each');
    my @loaders = all(qr/dataloader_init\(&/);
    after($loaders[-1], map { $L[$_] =~ /&(\w+), ([^,]+),/;
        "z_same_data(\"$1\", $1.B, $1.T, $2);" } @loaders);
}

# Removes the fields of GPT2 for the memory that the plugin now holds, and the lines that clear, check or free
# them. Any other use then does not compile.
sub remove_fields ($file, @names) {
    in('', 'GPT2 has no parameters, gradients or moments; a use of them goes through zero_param, zero_grad, '
       . 'zero_get and zero_set');
    my $end = one(qr/^\} GPT2;/);
    my ($start) = reverse all(qr/^typedef struct/, 0, $end);
    my $any = join '|', @names;
    my $field = qr/model->(?:$any)/;
    $removed{$file} = qr/\bmodel(?:->|\.)(?:$any)\b/;
    my %new = map { $_ => '' } all(qr/^\s+\w+\*? (?:$any);/, $start, $end), grep { !is_replaced($_) }
        all(qr/^\s*(?:$field = (?:NULL|nullptr);|assert\($field == |if ?\($field != NULL\) \{[^{}]*\})/),
        all(qr/^\s*(?:free\($field\)|cudaFreeCheck\(&$field\));/);
    instead_each(%new);
    instead($_, $_, 'if (z == NULL) {') for
        grep { !is_replaced($_) } all(qr/^\s*if ?\($field == (?:NULL|nullptr)\) ?\{/);
}

sub plain_edits {
    read_tensors();
    hook('the plugin\'s header, with the table of tensors, comes after the #includes');
    after(qr/^#include "llmc\/utils\.h"/, with_table('train_gpt2.h', map { $_ => 1 } @tensors));

    in('gpt2_build_from_checkpoint', 'z_create() and z_read_params() replace the allocation and the reading '
       . 'of all parameters');
    my $read = one(qr/freadCheck\(model->params_memory/);
    my ($file) = $L[$read] =~ /(\w+)\);/;
    instead(qr/params_memory = malloc_and_point/, $read,
            'z_create(model->param_sizes, model->config.num_layers);',
            "z_read_params($file);");
    in('gpt2_forward', 'model->mean_loss is z_mean() of this rank\'s loss');
    rewrite(sub { s/ = (\w+);.*/ = z_mean($1);/ }, one(qr/model->mean_loss = \w+;/));
    in('gpt2_zero_grad', 'the plugin clears gradients at the first micro-batch of a step');
    instead(qr/if ?\(model->grads_memory != NULL\)/, undef, 'z_backwards = 0;');
    in('gpt2_backward', 'only the gradients of activations are allocated here');
    instead(qr/if \(model->grads_memory == NULL\)/, qr/grads_memory = malloc_and_point/,
            'if (model->grads_acts_memory == NULL) {');
    each_use($_) for qw(forward backward);

    in('gpt2_update', "zero_step()$OPTIMIZER");
    instead(one(qr/\{\s*$/) + 1, one(qr/^\}/) - 1,
            'zero_hyper hyper = { learning_rate, beta1, beta2, eps, weight_decay, 0.0f, t };',
            'zero_step_result result;', 'z_check(zero_step(z, &hyper, &result));', 'z_print_note(&result);');
    in('gpt2_free', 'z_finish() prints the digest of the parameters and ends the plugin, before the end of '
       . 'main()');
    before(qr/free\(model->params_memory\);/, 'z_finish();');

    in('main', 'the rank and the number of ranks, zero_rank(z) and zero_ranks(z), go to every data loader');
    rewrite(sub { s/(.*), 0, 1\b/$1, zero_rank(z), zero_ranks(z)/ }, all(qr/dataloader_init\(&/));
    compare_inputs();
    hook('the printed numbers of batches divide by the tokens of all ranks');
    rewrite(sub { s/\(B\*T\)/(B*T*zero_ranks(z))/ }, all(qr/printf\(.*num_tokens \/ \(B\*T\)/));
    begin_training('0, 1');
    remove_fields('train_gpt2.c', qw(params params_memory grads grads_memory m_memory v_memory));
}

sub loader_edits {
    in('', 'all ranks shuffle alike, so that each row is used once');
    rewrite(sub { s/ \+ process_rank// }, all(qr/manual_seed\(.*\+ process_rank\)/));  # some have none
}

# ---- train_gpt2.cu. Its layers overlap: the end of a layer also computes the first layernorm of the next. It
# also has collectives, gradient accumulation, clipping and checkpoints.

my $RANK_0 = 'multi_gpu_config.process_rank == 0';

# The forward pass. The encoder uses the embedding unit. Layer 0's unit opens for its first layernorm. At the
# end of each layer the next unit opens; after the last layer that is the embedding unit, for the last
# layernorm and the LM head.
sub fused_forward {
    in('gpt2_forward');
    hook('a layer\'s unit opens at the end of the one before it: its pre hook comes before the first '
         . "layernorm, $UNIT");
    local_tensors("\nz_begin_pass();");
    my ($start, $end) = layer_loop();
    my ($head, $tail) = (one(qr/gpt2_forward/), one(qr/^\}/));
    use_of_unit([ uses($head, $start) ], ['z_check(zero_pre_forward(z, Z_EMBEDDING));'],
                ['z_check(zero_post_forward(z, Z_EMBEDDING));']);
    use_of_unit([ uses($head, $start, 1) ],
                ['z_check(zero_pre_forward(z, Z_BLOCKS)); // until the end of layer 0'], []);
    layer_pointers($start, $end);
    my $next = one(qr/if ?\(l ?\+ ?1 != L\) ?\{/, $start);
    my $fused = block_end(one(qr/\} else \{/, $next));
    before($next, 'z_check(zero_pre_forward(z, l + 1 != L ? Z_BLOCKS + l + 1 : Z_EMBEDDING));');
    use_of_unit([ uses($next, $fused) ], ['ParameterTensors params = {0};'], []);
    after($fused, 'z_check(zero_post_forward(z, Z_BLOCKS + l));');
    use_of_unit([ uses($end, $tail) ], [], ['z_check(zero_post_forward(z, Z_EMBEDDING));']);
}

sub fused_backward {
    in('gpt2_backward_and_reduce', 'the plugin clears gradients at the first micro-batch, not here');
    instead(qr/cudaMemsetAsync\(model->grads_memory/);
    hook('before the backward pass of a layer comes its pre hook; in place of '
         . 'multi_gpu_async_reduce_gradient() its post hook');
    local_tensors();
    my ($start, $end) = layer_loop();
    embedding_use(one(qr/gpt2_backward_and_reduce/), $start, 'backward');
    layer_pointers($start, $end, "z_check(zero_pre_backward(z, Z_BLOCKS + l));\n");
    my $reduce = one(qr/if ?\(last_step\) ?\{/, $start);
    instead($reduce, block_end($reduce), 'z_check(zero_post_backward(z, Z_BLOCKS + l));');
    my $last = one(qr/if ?\(last_step\) ?\{/, $end);
    embedding_use($end, $last, 'backward');
    instead(one(qr/floatX\* const pointers\[\]/, $last), qr/multi_gpu_async_reduce_gradient/);
    hook('model->mean_loss is the mean of z_sum() over the ranks');
    after(one(qr/model->mean_loss \/=/, $last),
          'model->mean_loss = z_sum(model->mean_loss) / zero_ranks(z);');
}

# Returns the tensors that the optimizer decays.
sub decayed {
    in('gpt2_update');
    my @numbers = $L[one(qr/\? weight_decay : 0\.0f;/)] =~ /\bi == (\d+)/g;
    in('');
    return @tensors[@numbers];
}

# Replaces the statements that pass all parameters to or from a variable, in parentheses in the pattern.
sub all_params ($pattern, $call, $from = undef) {
    my $line = one($pattern);
    my ($variable) = $L[$line] =~ $pattern;
    instead($from // $line, statement_end($line),
            "$call($variable);");
}

sub checkpoints {
    in('gpt2_write_to_checkpoint', 'z_write_params() writes the parameters; all ranks call it, and all but '
       . 'rank 0 write to /dev/null');
    rewrite(sub { s/(\w+), "wb"/$RANK_0 ? $1 : "\/dev\/null", "wb"/ }, one(qr/FILE ?\*\w+ = fopenCheck\(/));
    all_params(qr/device_to_file\((\w+), model->params_memory/, 'z_write_params');
    in('gpt2_build_from_checkpoint', 'z_read_params() reads all parameters of the file');
    all_params(qr/file_to_device\(model->params_memory, (\w+)/, 'z_read_params',
               all(qr/assert\(model->params_memory != NULL\);/));           # some versions have it
    in('gpt_build_from_descriptor', 'z_set_params() takes all initial values');
    all_params(qr/cudaMemcpy\(model->params_memory, (\w+)/, 'z_set_params');

    in('save_state', 'z_save() writes moments and masters; the header has Z_STATE_VERSION');
    rewrite(sub { s/ = .*?;/ = Z_STATE_VERSION;/ }, one(qr/state_header\[1\] = /));
    my ($states) = reverse all(qr/device_to_file\(/);
    $states++ if $L[$states + 1] =~ /^\s*\}/;                        # of if(model->use_master_weights) {
    instead(qr/size_t shard_num_parameters/, $states, 'z_save(filename, step);');
    in('load_state', 'z_check_state() checks the header, and z_load() loads moments and masters');
    instead(qr/assert\(state_header\[0\] ==/, qr/assert\(state_header\[1\] ==/,
            'z_check_state(state_header, filename);');
    instead(qr/size_t shard_num_parameters/);
    instead(qr/model->init_state = false;|assert\(model->m_memory/, one(qr/loader->should_shuffle =/) - 1,
            'z_load(filename, *step);');

    in('write_checkpoint', 'gpt2_write_to_checkpoint() runs on all ranks');
    my $write = one(qr/gpt2_write_to_checkpoint/);
    my ($if) = reverse all(qr/if \(rank == 0\) \{/, one(qr/write_checkpoint/), $write);
    instead($if, $if, '{');
    only_llmc($if + 1, block_end($if) - 1);
    in('delete_checkpoint', 'z_remove_state() comes after the state file is removed');
    after(one(qr/remove\(filename_buffer\)/, one(qr/state_%/)), 'z_remove_state(filename_buffer);');
}

sub cuda_main {
    in('main', 'z_same_options() and z_configure() pass options to the plugin before the model is built');
    after(qr/int grad_accum_steps = /, 'z_same_options(argc, argv);',
          'z_configure(zero_stage, grad_accum_steps, use_master_weights);');
    compare_inputs();
    hook('z_end() comes before the trainer\'s memory is freed');
    before(qr/multi_gpu_config_free\(/, 'z_end();');
    begin_training('micro_step, grad_accum_steps');
    hook('all ranks run every forward pass; only rank 0 prints');
    my $if = one(qr/if \(\Q$RANK_0\E && sample_every/);
    rewrite(sub { s/\Q$RANK_0\E && // }, $if);
    rewrite(sub { s/(.*;).*/if ($RANK_0) { $1 }/ }, all(qr/\b(?:safe_)?printf\(/, $if, block_end($if)));
    hook('a step without an update calls zero_discard()');
    after($_, '    z_check(zero_discard(z));') for all(qr/> skip_update_\w+\) \{/);
    hook('gpt2_update() gets z_max_norm(grad_scale, grad_clip), which checks the factor: the plugin clips by '
         . 'its own norm');
    rewrite(sub { s/(.*)\bgrad_scale\b/$1z_max_norm(grad_scale, grad_clip)/ },
            one(qr/gpt2_update\(.*\bgrad_scale\b/));
}

sub cuda_edits {
    read_tensors();
    hook('CUDA 13 changed cudaMemAdvise: the older one comes before llmc/cuda_utils.cuh');
    before(qr/^#include "llmc\/cuda_utils\.cuh"/, '#include "llmc_zero/cuda_13.h"');
    hook('the plugin connects the ranks: MULTI_GPU is undefined before zero.cuh');
    before(qr/^#include "llmc\/zero\.cuh"/, '#undef MULTI_GPU');
    my @nccl = map { [$_, one(qr/^\s*#\s*endif/, $_)] } all(qr/^\s*#\s*if\w* .*MULTI_GPU/);
    hook('the plugin\'s header, with the table of tensors, comes after main_stream is declared');
    after(qr/^cudaStream_t main_stream;/, with_table('train_gpt2cu.h', map { $_ => 1 } decayed()));

    in('gpt2_allocate_weights', 'z_create() replaces the allocation of all parameters');
    instead(qr/params_memory = malloc_and_point/, undef,
            'z_create(model->param_elements, model->config.num_layers);');
    in('gpt2_allocate_state', 'the plugin holds the gradients, moments and masters; none are allocated');
    instead(qr/printf0\(/, qr/grads_memory = malloc_and_point/);
    instead(qr/int memory_status =|size_t shard_num_parameters =/, one(qr/size_t free, total;/) - 1);
    checkpoints();
    fused_forward();
    fused_backward();

    in('gpt2_calculate_grad_norm', 'zero_finish_gradients() returns the norm of all gradients');
    instead(one(qr/\{\s*$/) + 1, one(qr/^\}/) - 1, 'zero_step_result result;',
            'z_check(zero_finish_gradients(z, &result));', 'z_print_note(&result);',
            'return z_norm = (float)result.grad_norm;');
    in('gpt2_update', "zero_update() clips, and its update$OPTIMIZER");
    instead(one(qr/\{\s*$/) + 1, one(qr/^\}/) - 1, 'NVTX_RANGE_FN();',
            'float grad_clip = grad_scale; // what main() passes',
            'zero_hyper hyper = { learning_rate, beta1, beta2, eps, weight_decay, grad_clip, t };',
            'z_check(zero_update(z, &hyper));',
            'cudaCheck(cudaDeviceSynchronize()); // so that main() measures the update too');
    cuda_main();
    remove_fields('train_gpt2.cu',
                  qw(params params_memory grads grads_memory m_memory v_memory master_weights));
    hook('the plugin connects the ranks, so this NCCL code must be llm.c\'s');
    for (@nccl) { only_llmc(@$_) if !is_replaced($_->[0]) }
}

# The plugin does the work of these files, so a fork's changes to them would be lost.
sub replaced_edits ($name) {
    in('');
    hook($name =~ /norm/ ? 'the plugin clips by the norm of all gradients, and this file is not used'
         : "this file is not used: the plugin's AdamW$OPTIMIZER");
    return only_llmc(0, $#L) if $name ne 'llmc/zero.cuh';
    for my $function (qw(multi_gpu_async_reduce_gradient multi_gpu_cpu_float_sum)) {
        hook("the plugin reduces gradients and sums in place of $function()");
        in('');
        my $start = one(qr/^\w[^;]*\b$function\s*\(/);
        only_llmc($start, one(qr/\}\s*$/, $start) == $start ? $start : one(qr/^\}/, $start));
    }
}

1;
