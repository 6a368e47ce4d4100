# The edits of llm.c's published versions of train_gpt2.cu, for --cuda. Its layers overlap: the end of a layer
# also computes the first layernorm of the next one. This trainer also has collectives, gradient accumulation,
# clipping and checkpoints.
use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

our (@L, @tensors, %in_blocks);
my $RANK_0 = 'multi_gpu_config.process_rank == 0';
my $UNITS = 'a layer\'s unit opens at the end of the one before it: its pre hook comes before the first '
    . 'layernorm, and pointers to its tensors come from z_param() and z_grad()';

# The forward pass. The encoder uses the embedding unit. Layer 0's unit opens for its first layernorm. At the
# end of each layer the next unit opens; after the last layer that is the embedding unit, for the last
# layernorm and the LM head.
sub fused_forward {
    in('gpt2_forward');
    hook('each layer is a unit, opened at the end of the previous one', $UNITS);
    local_tensors("\nz_begin_pass();");
    my ($start, $end) = layer_loop();
    my ($head, $tail) = (one(qr/gpt2_forward/), one(qr/^\}/));
    use_of_unit([ uses($head, $start) ], ['z_check(zero_pre_forward(z, Z_EMBEDDING));'],
                ['z_check(zero_post_forward(z, Z_EMBEDDING));']);
    use_of_unit([ uses($head, $start, 1) ],
        ['z_check(zero_pre_forward(z, Z_BLOCKS)); // until the end of layer 0'],
                []);
    layer_pointers($start, $end);
    my $next = one(qr/if ?\(l ?\+ ?1 != L\) ?\{/, $start);
    my $fused = block_end(one(qr/\} else \{/, $next));
    before($next, 'z_check(zero_pre_forward(z, l + 1 != L ? Z_BLOCKS + l + 1 : Z_EMBEDDING));');
    use_of_unit([ uses($next, $fused) ], ['ParameterTensors params = {0};'], []);
    after($fused, 'z_check(zero_post_forward(z, Z_BLOCKS + l));');
    use_of_unit([ uses($end, $tail) ], [], ['z_check(zero_post_forward(z, Z_EMBEDDING));']);
}

sub fused_backward {
    in('gpt2_backward_and_reduce');
    hook('the plugin clears its gradients', 'the plugin clears gradients at the first micro-batch, not here');
    my $clear = one(qr/cudaMemsetAsync\(model->grads_memory/);
    without($clear, $clear);
    hook('each layer is a unit; its post hook reduces its gradients',
        'before the backward pass of a layer comes '
         . 'its pre hook; in place of multi_gpu_async_reduce_gradient() its post hook');
    local_tensors();
    my ($start, $end) = layer_loop();
    embedding_use(one(qr/gpt2_backward_and_reduce/), $start, 'backward');
    layer_pointers($start, $end, "z_check(zero_pre_backward(z, Z_BLOCKS + l));\n");
    my $reduce = one(qr/if ?\(last_step\) ?\{/, $start);
    instead($reduce, block_end($reduce), 'z_check(zero_post_backward(z, Z_BLOCKS + l));');
    my $last = one(qr/if ?\(last_step\) ?\{/, $end);
    embedding_use($end, $last, 'backward');
    without(one(qr/floatX\* const pointers\[\]/, $last), one(qr/multi_gpu_async_reduce_gradient/, $last));
    hook('the loss is the mean over the ranks', 'model->mean_loss is the mean of z_sum() over the ranks');
    after(one(qr/model->mean_loss \/=/, $last),
        'model->mean_loss = z_sum(model->mean_loss) / zero_ranks(z);');
}

# Returns the tensors that the optimizer decays, by their numbers.
sub decayed {
    in('gpt2_update');
    my @numbers = $L[one(qr/\? weight_decay : 0\.0f;/)] =~ /\bi == (\d+)/g;
    in('');
    return map { $tensors[$_] } @numbers;
}

sub checkpoints {
    in('gpt2_write_to_checkpoint');
    hook('all ranks provide their parts, rank 0 writes',
         'z_write_params() writes the parameters; all ranks call it, and all but rank 0 write to /dev/null');
    my $open = one(qr/FILE ?\*\w+ = fopenCheck\(/);
    my $own = $L[$open] =~ s/^\s*(.*\()(\w+)(, "wb"\);).*\n/$1$RANK_0 ? $2 : "\/dev\/null"$3/r;
    instead($open, $open, $own);
    my $write = one(qr/device_to_file\((\w+), model->params_memory/);
    my ($file) = $L[$write] =~ /\((\w+)/;
    instead($write, statement_end($write),
        "z_write_params($file, model->param_elements, model->config.num_layers);");

    in('gpt2_build_from_checkpoint');
    hook('the parameters go to the plugin in pieces', 'z_read_params() reads all parameters of the file');
    my $read = one(qr/file_to_device\(model->params_memory, (\w+)/);
    ($file) = $L[$read] =~ /params_memory, (\w+)/;
    my ($assert) = all(qr/assert\(model->params_memory != NULL\);/);    # some versions have it
    instead($assert // $read, statement_end($read),
            "z_read_params($file, model->param_elements, model->config.num_layers);");

    in('gpt_build_from_descriptor');
    hook('random parameters go to the plugin too', 'z_set_params() takes all initial values');
    my $copy = one(qr/cudaMemcpy\(model->params_memory, (\w+)/);
    my ($memory) = $L[$copy] =~ /params_memory, (\w+)/;
    instead($copy, $copy, "z_set_params($memory, model->param_elements, model->config.num_layers);");

    in('save_state');
    hook('moments and masters go to the plugin\'s checkpoint',
         'z_save() writes moments and masters; the header has Z_STATE_VERSION');
    my $version = one(qr/state_header\[1\] = /);
    instead($version, $version, 'state_header[1] = Z_STATE_VERSION;');
    my ($states) = reverse all(qr/device_to_file\(/);
    $states++ if $L[$states + 1] =~ /^\s*\}/;                        # of if(model->use_master_weights) {
    instead(one(qr/size_t shard_num_parameters/), $states, 'z_save(filename, step);');

    in('load_state');
    hook('moments and masters are loaded from the plugin\'s checkpoint',
         'z_check_state() checks the header, and z_load() loads moments and masters');
    instead(one(qr/assert\(state_header\[0\] ==/), one(qr/assert\(state_header\[1\] ==/),
            'z_check_state(state_header, filename);');
    without((one(qr/size_t shard_num_parameters/)) x 2);
    instead(one(qr/model->init_state = false;|assert\(model->m_memory/),
        one(qr/loader->should_shuffle =/) - 1, 'z_load(filename, *step);');

    in('write_checkpoint');
    hook('all ranks take part in writing the model file', 'gpt2_write_to_checkpoint() runs on all ranks');
    my ($if) = reverse all(qr/if \(rank == 0\) \{/, one(qr/write_checkpoint/),
        one(qr/gpt2_write_to_checkpoint/));
    instead($if, $if, '{');
    only_llmc($if + 1, block_end($if) - 1);

    in('delete_checkpoint');
    hook('also removes the plugin\'s checkpoint', 'z_remove_state() comes after the state file is removed');
    after(one(qr/remove\(filename_buffer\)/, one(qr/state_%/)), 'z_remove_state(filename_buffer);');
}

sub cuda_main {
    in('main');
    hook('passes options to the plugin', 'z_same_options() and z_configure() come before the model is built');
    after(one(qr/int grad_accum_steps = /), 'z_same_options(argc, argv);',
          'z_configure(zero_stage, grad_accum_steps, use_master_weights);');
    compare_inputs();
    hook('the plugin ends', 'z_end() comes before the trainer\'s memory is freed');
    before(one(qr/multi_gpu_config_free\(/), 'z_end();');
    begin_training('micro_step, grad_accum_steps');

    hook('all ranks sample, rank 0 prints', 'all ranks run every forward pass; only rank 0 prints');
    my $if = one(qr/if \(\Q$RANK_0\E && sample_every/);
    instead($if, $if, $L[$if] =~ s/^\s*(if \()\Q$RANK_0\E && (.*)\n/$1$2/r);
    instead_each(map { $_ => $L[$_] =~ s/^\s*(.*;).*\n/if ($RANK_0) { $1 }/r }
                 all(qr/\b(?:safe_)?printf\(/, $if, block_end($if)));

    hook('skipped steps are discarded', 'a step without an update calls zero_discard()');
    after($_, '    z_check(zero_discard(z));') for all(qr/> skip_update_\w+\) \{/);
    hook('the plugin gets the maximum norm, and checks the factor', 'gpt2_update() gets '
         . 'z_max_norm(grad_scale, grad_clip): the plugin clips by its own norm');
    my $update = one(qr/gpt2_update\(.*\bgrad_scale\b/);
    instead($update, $update, $L[$update] =~
            s/^\s*(.*)\bgrad_scale\b(.*)\n/$1z_max_norm(grad_scale, grad_clip)$2/r);
}

sub cuda_edits {
    read_tensors();
    hook('CUDA 13 changed cudaMemAdvise', 'the older cudaMemAdvise comes before llmc/cuda_utils.cuh');
    before(one(qr/^#include "llmc\/cuda_utils\.cuh"/), '#include "llmc_zero/cuda_13.h"');
    hook('the plugin connects the ranks; the NCCL code is not compiled',
        'MULTI_GPU is undefined before zero.cuh');
    before(one(qr/^#include "llmc\/zero\.cuh"/), '#undef MULTI_GPU');
    my @nccl = map { [$_, one(qr/^\s*#\s*endif/, $_)] } all(qr/^\s*#\s*if\w* .*MULTI_GPU/);
    hook('the plugin, its tensor table, the ranks', 'the plugin\'s code comes after main_stream is declared');
    after(one(qr/^cudaStream_t main_stream;/), with_table('train_gpt2cu.h', map { $_ => 1 } decayed()));

    in('gpt2_allocate_weights');
    hook('the plugin holds the parameters', 'z_create() replaces the allocation of all parameters');
    my $weights = one(qr/params_memory = malloc_and_point/);
    instead($weights, $weights, 'z_create(model->param_elements, model->config.num_layers);');
    in('gpt2_allocate_state');
    hook('the plugin holds the gradients', 'no gradients are allocated');
    without(one(qr/printf0\(/), one(qr/grads_memory = malloc_and_point/));
    hook('the plugin holds the moments and masters', 'no moments and masters are allocated');
    without(one(qr/int memory_status =|size_t shard_num_parameters =/), one(qr/size_t free, total;/) - 1);
    checkpoints();
    fused_forward();
    fused_backward();

    in('gpt2_calculate_grad_norm');
    hook('the reduction computes the norm', 'zero_finish_gradients() returns the norm of all gradients');
    instead(one(qr/\{\s*$/) + 1, one(qr/^\}/) - 1, 'zero_step_result result;',
            'z_check(zero_finish_gradients(z, &result));', 'return z_norm = (float)result.grad_norm;');
    in('gpt2_update');
    hook('the plugin clips and updates',
        'zero_update() is llm.c\'s AdamW; docs/porting.md, "Optimizers other '
         . 'than AdamW", shows how to keep another one');
    instead(one(qr/\{\s*$/) + 1, one(qr/^\}/) - 1, 'NVTX_RANGE_FN();',
            'float grad_clip = grad_scale; // what main() passes',
            'zero_hyper hyper = { learning_rate, beta1, beta2, eps, weight_decay, grad_clip, t };',
            'z_check(zero_update(z, &hyper));',
            'cudaCheck(cudaDeviceSynchronize()); // so that main() measures the update too');
    cuda_main();
    remove_fields('train_gpt2.cu',
        qw(params params_memory grads grads_memory m_memory v_memory master_weights));
    hook('the NCCL code is not compiled', 'the plugin connects the ranks, so this code must be llm.c\'s');
    for (@nccl) { only_llmc(@$_) if !is_replaced($_->[0]) }
}

# The plugin does the work of these files, so a fork's changes to them would be lost.
sub replaced_edits ($name) {
    in('');
    hook('', $name =~ /norm/ ? 'the plugin clips by the norm of all gradients, and this file is not used'
         : 'the plugin\'s AdamW is llm.c\'s, and this file is not used; docs/porting.md, "Optimizers other '
           . 'than AdamW", shows how to keep another one');
    return only_llmc(0, $#L) if $name ne 'llmc/zero.cuh';
    for my $function (qw(multi_gpu_async_reduce_gradient multi_gpu_cpu_float_sum)) {
        hook('', "the plugin reduces gradients and sums in place of $function()");
        in('');
        my $start = one(qr/^\w[^;]*\b$function\s*\(/);
        only_llmc($start, one(qr/\}\s*$/, $start) == $start ? $start : one(qr/^\}/, $start));
    }
}

1;
