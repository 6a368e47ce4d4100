# The edits of train_gpt2.cu, for --cuda. Its layers overlap: the end of a layer also computes the first
# layernorm of the next one. This trainer also has collectives, gradient accumulation, clipping and
# checkpoints.
use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

our (%files, %FILE, $ONLY_ADAMW);
my ($CUDA, $MAKEFILE) = @FILE{qw(cuda makefile)};

# The plugin does not use this code, so it must be llm.c's: a fork's changes to it would be lost silently.
my $OWN_NORM = 'The plugin would clip by the norm of all gradients';
our @replaced = (
    [ 'llmc/adamw.cuh', '', 'adamw', $ONLY_ADAMW . 'llmc/adamw.cuh' ],
    [ 'llmc/global_norm.cuh', '', 'global_norm', $OWN_NORM ],
    map { [ 'llmc/zero.cuh', $_, $_, "The plugin would do this instead of $_()" ] }
        qw(multi_gpu_async_reduce_gradient multi_gpu_cpu_float_sum),
);

sub check_replaced {
    for my $row (@replaced) {
        my ($name, $function, $place, $effect) = @$row;
        my $f = $files{$name} || load($name);
        my $in = $function ? function($f, $function) : whole($f);
        $in = { %$in, from => $in->{head}, to => $in->{to} + 1 } if $function;
        known($f, $in, "cuda.$place", $effect);
    }
}

our @cuda_edits = (
    [ $CUDA, '', 'CUDA 13 changed cudaMemAdvise', sub ($f, $in) {
        my $include = find($f, $in, qr/^#include\s+"llmc\/cuda_utils\.cuh"/m,
                           '#include "llmc/cuda_utils.cuh"');
        before($f, $include, cuda_13());
    } ],
    [ $CUDA, '', 'the plugin connects the ranks; the NCCL code is not compiled', sub ($f, $in) {
        my $include = find($f, $in, qr/^#include\s+"llmc\/zero\.cuh"/m, '#include "llmc/zero.cuh"');
        before($f, $include, '#undef MULTI_GPU');
    } ],
    [ $CUDA, '', 'the plugin, its tensor table, the ranks', sub ($f, $in) {
        after($f, find($f, $in, 'cudaStream_t main_stream;'), cuda_helpers($f));
    } ],
    [ $CUDA, 'gpt2_allocate_weights', 'the plugin holds the parameters', sub ($f, $in) {
        instead($f, find($f, $in, 'model->params_memory = malloc_and_point_parameters(...);'),
                'z_create(model->param_elements, model->config.num_layers);');
    } ],
    [ $CUDA, 'gpt2_allocate_state', 'the plugin holds the gradients', sub ($f, $in) {
        my $print = find($f, $in, 'printf0(');
        my $allocate = find($f, $in, 'model->grads_memory = malloc_and_point_parameters(...);');
        my $all = within(span($print, $allocate), $in);
        known($f, $all, 'cuda.allocate_gradients', nothing_but('allocate gradients'));
        without($f, $all);
    } ],
    [ $CUDA, 'gpt2_allocate_state', 'the plugin holds the moments and masters', sub ($f, $in) {
        my $first = find($f, $in, qr/int\s+memory_status\s*=|size_t\s+shard_num_parameters\s*=/,
                         'size_t shard_num_parameters = ...;');
        my $next = find($f, rest($first, $in), 'size_t free, total;');
        my $all = code_only($f, within({ from => $first->{from}, to => $next->{from} }, $in));
        known($f, $all, 'cuda.allocate_states', nothing_but('allocate its own states'));
        without($f, $all);
    } ],
    [ $CUDA, 'gpt2_write_to_checkpoint', 'all ranks provide their parts, rank 0 writes', sub ($f, $in) {
        my $open = find($f, $in, 'FILE *<file> = fopenCheck(<path>, ...);');
        my ($file, $path) = @$open{1, 2};
        my $own = "multi_gpu_config.process_rank == 0 ? $path : \"/dev/null\"";
        instead($f, $open, "FILE *$file = fopenCheck($own, \"wb\");");
        my $write = find($f, $in, "device_to_file($file, model->params_memory, ...);");
        instead($f, $write, "z_write_params($file, model->param_elements, model->config.num_layers);");
    } ],
    [ $CUDA, 'gpt2_build_from_checkpoint', 'the parameters go to the plugin in pieces', sub ($f, $in) {
        my $assert = find($f, $in, 'assert(model->params_memory != NULL);');
        my $read = find($f, rest($assert, $in), 'file_to_device(model->params_memory, <file>, ...);');
        my $both = within(span($assert, $read), $in);
        known($f, $both, 'cuda.read_parameters', nothing_but('read all parameters'));
        instead($f, $both, "z_read_params($read->{1}, model->param_elements, model->config.num_layers);");
    } ],
    [ $CUDA, 'gpt_build_from_descriptor', 'random parameters go to the plugin too', sub ($f, $in) {
        my $copy = find($f, $in, 'cudaCheck(cudaMemcpy(model->params_memory, <memory>, ...));');
        instead($f, $copy, "z_set_params($copy->{1}, model->param_elements, model->config.num_layers);");
    } ],
    [ $CUDA, 'gpt2_forward', 'each layer is a unit, opened at the end of the previous one', \&fused_forward ],
    [ $CUDA, 'gpt2_validate', 'starts an evaluation on all ranks', sub ($f, $in) {
        before($f, find($f, $in, 'gpt2_forward(...);'), 'z_check(zero_begin_eval(z));');
    } ],
    [ $CUDA, 'gpt2_backward_and_reduce', 'the plugin clears its gradients', sub ($f, $in) {
        # Like the plugin, the trainer must clear them before the first micro-batch.
        my $clear = qr/cudaCheck\s*\(\s*cudaMemsetAsync\s*\(\s*model->grads_memory[^;]*;/;
        without($f, find($f, $in, qr/if\s*\(\s*micro_step\s*==\s*0\s*\)\s*\{[^{}]*?\K$clear/,
                         'if (micro_step == 0) { ... cudaMemsetAsync(model->grads_memory, ...);'));
    } ],
    [ $CUDA, 'gpt2_backward_and_reduce', 'each layer is a unit; its post hook reduces its gradients',
      \&fused_backward ],
    [ $CUDA, 'gpt2_backward_and_reduce',
      'use of the embedding unit by the encoder; the loss is the mean over the ranks',
      \&last_of_backward ],
    [ $CUDA, 'gpt2_calculate_grad_norm', 'the reduction computes the norm', sub ($f, $in) {
        outside_by_number($f, $in);
        known($f, $in, 'cuda.norm', $OWN_NORM);
        my $reduce = 'z_check(zero_finish_gradients(z, &result));';
        instead($f, $in, 'zero_step_result result;', $reduce, 'return z_norm = (float)result.grad_norm;');
    } ],
    [ $CUDA, 'gpt2_update', 'the plugin clips and updates', sub ($f, $in) {
        outside_by_number($f, $in);
        known($f, $in, 'cuda.update', $ONLY_ADAMW . 'gpt2_update');
        instead($f, $in, 'NVTX_RANGE_FN();', 'float grad_clip = grad_scale; // what main() passes',
                'zero_hyper hyper = { learning_rate, beta1, beta2, eps, weight_decay, grad_clip, t };',
                'z_check(zero_update(z, &hyper));',
                'cudaCheck(cudaDeviceSynchronize()); // so that main() measures the update too');
    } ],
    [ $CUDA, 'save_state', 'moments and masters go to the plugin\'s checkpoint', sub ($f, $in) {
        instead($f, find($f, $in, 'state_header[1] = ...;'), 'state_header[1] = Z_STATE_VERSION;');
        my $first = find($f, $in, 'size_t shard_num_parameters ...;');
        my $last = (find_all($f, $in, 'device_to_file(...);'))[-1];
        my $closed = find($f, rest($last, $in), qr/\S/, 'the end of the block');
        $last = $closed if text_of($f, $closed) eq '}';                 # of if(model->use_master_weights) {
        my $all = within(span($first, $last), $in);
        known($f, $all, 'cuda.save_states', nothing_but('save its own states'));
        instead($f, $all, 'z_save(filename, step);');
    } ],
    [ $CUDA, 'load_state', 'moments and masters are loaded from the plugin\'s checkpoint', sub ($f, $in) {
        my $magic = find($f, $in, 'assert(state_header[0] ==');
        my $version = find($f, $in, 'assert(state_header[1] == ...);');
        my $checks = within(span($magic, $version), $in);
        known($f, $checks, 'cuda.check_state', nothing_but('check magic number and version'));
        instead($f, $checks, 'z_check_state(state_header, filename);');
        without($f, find($f, $in, 'size_t shard_num_parameters ...;'));
        my $state = find($f, $in, 'model->init_state = false;');
        my $next = find($f, rest($state, $in), 'loader->should_shuffle =');
        my $all = code_only($f, within({ from => $state->{from}, to => $next->{from} }, $in));
        known($f, $all, 'cuda.load_states', nothing_but('load its own states'));
        instead($f, $all, 'z_load(filename, *step);');
    } ],
    [ $CUDA, 'write_checkpoint', 'all ranks take part in writing the model file', sub ($f, $in) {
        my $if = find($f, $in, qr/if\s*\(\s*rank\s*==\s*0\s*\)\s*\{(?=[^{}]*\bgpt2_write_to_checkpoint\b)/,
                      'if (rank == 0) { ... gpt2_write_to_checkpoint(...);');
        my $block = within(braces($f, $if->{to} - 1), $in);
        known($f, $block, 'cuda.write_model', 'All ranks would run this block');
        instead($f, $if, '{');
    } ],
    [ $CUDA, 'delete_checkpoint', 'also removes the plugin\'s checkpoint', sub ($f, $in) {
        my @removed = find_all($f, $in, 'remove(filename_buffer);');
        my $name = qr/"%s\/state_[^"\n]*"[^\n]*\s*\z/;
        my ($state) = grep { substr($f->{text}, 0, $_->{from}) =~ $name } @removed;
        $state or missing($f, $in, 'remove(filename_buffer); after the name of a state_ file');
        after($f, $state, 'z_remove_state(filename_buffer);');
    } ],
    [ $CUDA, 'main', 'passes options to the plugin', sub ($f, $in) {
        after($f, find($f, $in, 'int grad_accum_steps = ...;'), 'z_same_options(argc, argv);',
              'z_configure(zero_stage, grad_accum_steps, use_master_weights);');
    } ],
    [ $CUDA, 'main', 'checks that all ranks read the same data', sub ($f, $in) {
        compare_inputs($f, loaders($f, $in));
    } ],
    [ $CUDA, 'main', 'the plugin provides start, end, sums and barrier of the ranks', sub ($f, $in) {
        my @macros = qw(multi_gpu_config_init set_zero_configs multi_gpu_cpu_float_sum multi_gpu_barrier);
        find($f, whole($f), qr/\b$_\s*\(/, "a call of $_") for @macros;
        before($f, find($f, $in, 'multi_gpu_config_free(...);'), 'z_end();');
    } ],
    [ $CUDA, 'main', 'starts a training or evaluation pass', sub ($f, $in) {
        my $backward = find($f, $in, 'gpt2_backward_and_reduce(..., <steps>, <step>);');
        begin_passes($f, $in, "$backward->{2}, $backward->{1}");
    } ],
    [ $CUDA, 'main', 'all ranks sample, rank 0 prints', \&sampling ],
    [ $CUDA, 'main', 'skipped steps are discarded', sub ($f, $in) {
        my @skips = find_all($f, $in, qr/\S[^\n]*>\s*skip_update_\w+\s*\)\s*\{/,
                             'if (... > skip_update_...) {');
        after($f, $_, '    z_check(zero_discard(z));') for @skips;
    } ],
    [ $CUDA, 'main', 'the plugin gets the maximum norm, and checks the factor', sub ($f, $in) {
        my $update = find($f, $in, 'gpt2_update(..., grad_scale, ...);');
        instead($f, $update, text_of($f, $update) =~ s/\bgrad_scale\b/z_max_norm(grad_scale, grad_clip)/r);
    } ],
    [ $CUDA, '', 'the model has no memory that the plugin holds', sub ($f, $in) {
        remove_fields($f, qw(params params_memory grads grads_memory m_memory v_memory master_weights));
    } ],
    [ $MAKEFILE, '', 'train_gpt2cu is built with the plugin', sub ($f, $in) {
        my $has = join '', map { "(?=[^\\n]*\\\$\\($_\\))" } qw(NVCC_FLAGS NVCC_INCLUDES NVCC_LDLIBS);
        find($f, $in, qr/^train_gpt2cu:[^\n]*\btrain_gpt2\.cu\b[^\n]*\n\t$has[^\n]*\$\^/m,
             'the rule "train_gpt2cu: train_gpt2.cu" with $(NVCC_FLAGS), $^, $(NVCC_INCLUDES) and '
             . '$(NVCC_LDLIBS)');
        insert($f, $f->{edits}[-1]{at}, cuda_make_rules(), $f->{what});    # below the other trainer's rules
    } ],
);

# The forward pass. The encoder uses the embedding unit. Layer 0's unit opens for its first layernorm. At the
# end of each layer the next unit opens; after the last layer that is the embedding unit, for the last
# layernorm and the LM head.
sub fused_forward ($f, $in) {
    my $loop = layer_loop($f, $in);
    my ($l, $L) = @$loop{qw(layer layers)};
    local_tensors($f, $in);
    first_layernorm($f, $in);
    layer_pointers($f, $loop);

    my $if = find($f, $loop, qr/if\s*\(\s*$l\s*\+\s*1\s*!=\s*$L\s*\)\s*(?=\{)/, "if ($l + 1 != $L) {");
    my $next = braces($f, $if->{to});
    my $else = find($f, { %$loop, from => $next->{to} }, qr/\A\}\s*else\s*(?=\{)/, '} else {');
    my $end = within(braces($f, $else->{to}), $in);
    my $both = { from => $if->{from}, to => $end->{to} + 1 };
    before($f, $both, "z_check(zero_pre_forward(z, $l + 1 != $L ? Z_BLOCKS + $l + 1 : Z_EMBEDDING));");
    my @last = uses_in($f, $end);
    outside_layers($f, $_) for @last;
    use_of_unit($f, \@last, ['ParameterTensors params = {0};'], []);
    after($f, $both, "z_check(zero_post_forward(z, Z_BLOCKS + $l));");

    my @head = uses_in($f, after_loop($f, $in));
    outside_layers($f, $_) for @head;
    use_of_unit($f, \@head, [], ['z_check(zero_post_forward(z, Z_EMBEDDING));']);
}

sub first_layernorm ($f, $in) {
    my @uses = uses_in($f, before_loop($f, $in));
    my @encoder = grep { !$f->{in_blocks}{$_->{2}} } @uses;
    my @layernorm = grep { $f->{in_blocks}{$_->{2}} } @uses;
    @encoder && @layernorm && $encoder[-1]{to} < $layernorm[0]{from}
        or missing($f, $in, 'before the loop over the layers a use of the embeddings, then one of the first '
                   . 'layernorm\'s parameters');
    outside_layers($f, $_) for @encoder;
    use_of_unit($f, \@encoder, ['z_check(zero_pre_forward(z, Z_EMBEDDING));'],
                ['z_check(zero_post_forward(z, Z_EMBEDDING));']);
    my $open = 'z_check(zero_pre_forward(z, Z_BLOCKS)); // until the end of layer 0';
    use_of_unit($f, \@layernorm, [$open], []);
}

# The backward pass up to the end of the loop: the plugin reduces a layer's gradients.
sub fused_backward ($f, $in) {
    local_tensors($f, $in);
    embedding_use($f, before_loop($f, $in), 'backward');
    my $loop = layer_loop($f, $in);
    my $l = $loop->{layer};
    my $reduce = reduction($f, $loop);
    my @gradients = map { $_->{1} } find_all($f, $loop, '<gradient> = grads.');
    reduces_all($f, $reduce->{inside}, @gradients);
    my $pointers = { %$loop, to => $reduce->{from} };
    layer_pointers($f, $pointers, "z_check(zero_pre_backward(z, Z_BLOCKS + $l));\n");
    instead($f, $reduce, "z_check(zero_post_backward(z, Z_BLOCKS + $l));");
}

# if(last_step) { ... multi_gpu_async_reduce_gradient(...); }
sub reduction ($f, $in) {
    my $if = find($f, $in, qr/if\s*\(\s*last_step\s*\)\s*(?=\{)/, 'if(last_step) {');
    my $inside = within(braces($f, $if->{to}), $in);
    find($f, $inside, 'multi_gpu_async_reduce_gradient(...);');
    return { from => $if->{from}, to => $inside->{to} + 1, inside => $inside };
}

# Checks that the range only reduces these gradients.
sub reduces_all ($f, $range, @gradients) {
    my $list = find($f, $range, qr/\A\s*floatX\s*\*\s*const\s+(\w+)\[\]\s*=\s*\{([\w\s.,]*)\}\s*;/,
                    'floatX* const pointers[] = {...}; at its start');
    my $call = '\s*\(\s*' . $list->{1} . '\s*,\s*\g1\s*,\s*&multi_gpu_config\s*,\s*main_stream\s*\)\s*;';
    my $sizes = qr/const\s+size_t\s+(\w+)\[\]\s*=\s*\{[\w\s,*]*\}\s*;/;
    find($f, rest($list, $range), qr/\A\s*$sizes\s*multi_gpu_async_reduce_gradient$call\s*\z/,
         "only sizes, and multi_gpu_async_reduce_gradient($list->{1}, ..., &multi_gpu_config, main_stream);");
    my $reduced = join ' ', sort split /[\s,]+/, $list->{2} =~ s/^\s+//r;
    my $wanted = join ' ', sort @gradients;
    $reduced eq $wanted or missing($f, $list, "all gradients, and each once, in $list->{1}: $wanted");
}

sub last_of_backward ($f, $in) {
    my $after = after_loop($f, $in);
    my $reduce = reduction($f, $after);
    embedding_use($f, { %$after, to => $reduce->{from} }, 'backward');
    my $inside = $reduce->{inside};
    my $pointers = find($f, $inside, 'floatX* const <pointers>[] = {...};');
    my $call = find($f, $inside, 'multi_gpu_async_reduce_gradient(...);');
    my $reduced = within(span($pointers, $call), $in);
    reduces_all($f, $reduced, map { "grads.$_" } grep { !$f->{in_blocks}{$_} } @{ $f->{tensors} });
    without($f, $reduced);
    my $mean = find($f, rest($reduce, $in), 'model->mean_loss /= ...;');
    after($f, $mean, 'model->mean_loss = z_sum(model->mean_loss) / zero_ranks(z);');
}

# With the plugin, code between #if MULTI_GPU and #endif is not compiled, so it must be llm.c's.
sub check_nccl ($f) {
    for my $if (find_any($f, whole($f), qr/^[ \t]*#[ \t]*if[^\n]*\bMULTI_GPU\b/m)) {
        next if is_replaced($f, $if->{from});
        my $rest = { from => $if->{from}, to => length $f->{mask} };
        my $endif = find($f, $rest, qr/^[ \t]*#[ \t]*endif\b[^\n]*/m, '#endif');
        known($f, span($if, $endif), 'cuda.nccl',
              'It is not compiled with the plugin, which connects the ranks itself');
    }
}

# Returns the tensors that the optimizer decays, by their numbers in "float wd = (i == 0 || i == 1 || ...) ?
# weight_decay : 0.0f;"
sub decayed ($f) {
    my $in = function($f, 'gpt2_update');
    my $wd = find($f, $in, qr/=\s*\(([^()?;]*)\)\s*\?\s*weight_decay\s*:\s*0\.0f\s*;/,
                  '(i == NUMBER || ...) ? weight_decay : 0.0f;');
    my @numbers = $wd->{1} =~ /\bi\s*==\s*(\d+)/g;
    my $is_list = $wd->{1} =~ /^\s*i\s*==\s*\d+(?:\s*\|\|\s*i\s*==\s*\d+)*\s*$/;
    $is_list && !grep { $_ > $#{ $f->{tensors} } } @numbers
        or missing($f, $wd, 'numbers of tensors: (i == NUMBER || ...) ? weight_decay : 0.0f;');
    return { map { $f->{tensors}[$_] => 1 } @numbers };
}

# The optimizer and the norm treat tensors outside the layers differently. The numbers in their condition, i <
# NUMBER || i > NUMBER, must match the fields of ParameterTensors.
sub outside_by_number ($f, $in) {
    for my $test (find_any($f, $in, qr/\bi\s*<\s*(\d+)\s*\|\|\s*i\s*>\s*(\d+)/)) {
        my $tensors = $f->{tensors};
        for my $i (0 .. $#$tensors) {
            my $outside = $i < $test->{1} || $i > $test->{2};
            $outside != $f->{in_blocks}{ $tensors->[$i] }
                or missing($f, $test, 'the numbers of the tensors outside the layers');
        }
    }
}

sub sampling ($f, $in) {
    my $condition = qr/multi_gpu_config\.process_rank\s*==\s*0\s*&&\s*(sample_every\b[^\n]*)/;
    my $if = find($f, $in, qr/if\s*\(\s*$condition/,
                  'if (multi_gpu_config.process_rank == 0 && sample_every ...');
    my $block = within(braces($f, index $f->{mask}, '{', $if->{to}), $in);
    my @prints = find_all($f, $block, qr/\b(?:safe_)?printf\s*\([^;]*;/, 'printf(...);');
    $_->{new} = 'if (multi_gpu_config.process_rank == 0) { ' . text_of($f, $_) . ' }' for @prints;
    instead($f, $if, "if ($if->{1}");
    instead_each($f, @prints);
}

1;
