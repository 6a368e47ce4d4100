# The edits of llm.c's published versions: train_gpt2.c, llmc/dataloader.h, and what both trainers share.
use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

our (@L, @tensors, %in_blocks, %removed);       # %removed: file -> a pattern for uses of fields that go
my $TABLE = 'the table of tensors, z_table, must have a row for every tensor';
my $HOOKS = 'before a unit\'s parameters are used comes its pre hook, after its last use its post hook, and '
    . 'pointers to its tensors come from z_param() and z_grad()';

sub pointer ($struct, $name, $offset) {
    return ($struct eq 'params' ? 'z_param(' : 'z_grad(') . 'Z_' . uc($name) . ", $offset)";
}

# Reads the names of the tensors in memory order, and which of them every layer has.
sub read_tensors {
    hook('', $TABLE);
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
    push @numbers, '    ' . join ' ', map { 'Z_' . uc($_) . ',' } @tensors[$_ .. least($_ + 5, $#tensors)]
        for map { 6 * $_ } 0 .. $#tensors / 6;
    push @rows, join ' ', map { "{ \"$_\", " . ($in_blocks{$_} ? 'Z_BLOCKS, ' : 'Z_EMBEDDING, ')
        . ($decayed{$_} // 0) . ' },' } @tensors[$_ .. least($_ + 3, $#tensors)]
        for map { 4 * $_ } 0 .. $#tensors / 4;
    return join "\n", 'enum { // the tensors, as in ParameterTensors', @numbers, '    Z_TENSORS', '};',
        join(" \\\n    ", '#define Z_TABLE', @rows), "#include \"llmc_zero/$header\"";
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
    hook('hooks around each use of a unit, and its pointers', $HOOKS);
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
    hook('starts a training pass',
        "z_begin_train($micro, inputs, bytes) comes directly before the forward pass of a "
         . 'training step; all ranks run every pass');
    my ($line) = reverse all(qr/gpt2_forward\(/);
    my ($inputs, $B, $T) = (split /, */, $L[$line] =~ s/\).*//sr)[1, -2, -1];
    before($line, "z_begin_train($micro, $inputs, (size_t)$B * $T * sizeof(*$inputs));");
}

# The ranks compare their inputs: the parameters, and the files of the data loaders.
sub compare_inputs {
    hook('checks that all ranks read the same data',
         'after the data loaders are ready, z_same_data(name, B, T, pattern) compares each');
    my @loaders = all(qr/dataloader_init\(&/);
    after($loaders[-1], map { $L[$_] =~ /&(\w+), ([^,]+),/;
        "z_same_data(\"$1\", $1.B, $1.T, $2);" } @loaders);
}

# Removes the fields of GPT2 for the memory that the plugin now holds, and the lines that clear, check or free
# them. Any other use then does not compile.
sub remove_fields ($file, @names) {
    in('');
    hook('the model has no memory that the plugin holds',
         'GPT2 has no parameters, gradients or moments; a use of them goes through zero_param, zero_grad, '
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
    hook('the plugin, its tensor table; only rank 0 prints', 'the plugin\'s code comes after the #includes');
    after(one(qr/^#include "llmc\/utils\.h"/),
          with_table('train_gpt2.h', map { $_ => 1 } @tensors));

    in('gpt2_build_from_checkpoint');
    hook('the plugin reads the parameters in pieces',
         'z_create() and z_read_params() replace the allocation and the reading of all parameters');
    my $read = one(qr/freadCheck\(model->params_memory/);
    my ($file) = $L[$read] =~ /(\w+)\);/;
    instead(one(qr/params_memory = malloc_and_point/), $read,
            'z_create(model->param_sizes, model->config.num_layers);',
            "z_read_params($file, model->param_sizes, model->config.num_layers);");

    in('gpt2_forward');
    hook('the loss is the mean over the ranks', 'model->mean_loss is z_mean() of this rank\'s loss');
    my $loss = one(qr/model->mean_loss = \w+;/);
    instead($loss, $loss, $L[$loss] =~ s/^\s*(.* = )(\w+);.*/$1z_mean($2);/sr);

    in('gpt2_zero_grad');
    hook('the plugin clears its gradients', 'the plugin clears gradients at the first micro-batch of a step');
    my $clear = one(qr/if ?\(model->grads_memory != NULL\)/);
    instead($clear, $clear, 'z_backwards = 0;');

    in('gpt2_backward');
    hook('no gradients are allocated here', 'only the gradients of activations are allocated here');
    my $lazy = one(qr/if \(model->grads_memory == NULL\)/);
    instead($lazy, one(qr/grads_memory = malloc_and_point/), 'if (model->grads_acts_memory == NULL) {');
    each_use($_) for qw(forward backward);

    in('gpt2_update');
    hook('the plugin reduces and updates',
        'zero_step() is llm.c\'s AdamW; docs/porting.md, "Optimizers other '
         . 'than AdamW", shows how to keep another one');
    my $body = one(qr/\{\s*$/) + 1;
    instead($body, one(qr/^\}/) - 1,
            'zero_hyper hyper = { learning_rate, beta1, beta2, eps, weight_decay, 0.0f, t };',
            'z_check(zero_step(z, &hyper, NULL));');

    in('gpt2_free');
    hook('prints the digest of the parameters; ends the plugin', 'z_finish() comes before the end of main()');
    before(one(qr/free\(model->params_memory\);/), 'z_finish();');

    in('main');
    hook('each rank reads its part of the data',
         'the rank and the number of ranks, zero_rank(z) and zero_ranks(z), go to every data loader');
    instead_each(map { $_ => $L[$_] =~ s/^\s*(.*), 0, 1\b(.*)\n/$1, zero_rank(z), zero_ranks(z)$2/r }
                 all(qr/dataloader_init\(&/));
    compare_inputs();
    hook('the printed number of batches counts all ranks', 'divide by the tokens of all ranks');
    instead_each(map { $_ => $L[$_] =~ s/^\s*(.*)\(B\*T\)(.*)\n/$1(B*T*zero_ranks(z))$2/r }
                 all(qr/printf\(.*num_tokens \/ \(B\*T\)/));
    begin_training('0, 1');
    remove_fields('train_gpt2.c', qw(params params_memory grads grads_memory m_memory v_memory));
}

sub loader_edits {
    in('');
    hook('the shuffle is the same on all ranks', 'all ranks shuffle alike, so that each row is used once');
    instead_each(map { $_ => $L[$_] =~ s/^\s*(.*) \+ process_rank(.*)\n/$1$2/r }
                 all(qr/manual_seed\(.*\+ process_rank\)/));       # older loaders do not shuffle
}

1;
