# Edits for both trainers: hooks around each use of a unit and, between the hooks, pointers to its tensors.
use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

our (%files, %FILE);

sub number ($name) { return 'Z_' . uc $name }

sub pointer ($struct, $name, $offset) {
    return ($struct eq 'params' ? 'z_param(' : 'z_grad(') . number($name) . ", $offset)";
}

# Reads the names of the tensors in memory order, and which of them have a size that depends on the number of
# layers: every layer has these.
sub read_tensors ($f) {
    my $body = function($f, 'malloc_and_point_parameters');
    my @names = map { $_->{1} } find_all($f, $body, qr/&params->(\w+)/, '&params->NAME');
    $f->{tensors} = \@names;
    my $in = function($f, 'fill_in_parameter_sizes');
    my $L = find($f, $in, qr/\b(\w+)\s*=\s*config\.num_layers\s*;/, 'VARIABLE = config.num_layers;')->{1};
    my @sizes = find_all($f, $in, qr/param_sizes\[(\d+)\]\s*=\s*([^;]*);/, 'param_sizes[NUMBER] = SIZE;');
    my $last = $#names;
    join(' ', sort { $a <=> $b } map { $_->{1} } @sizes) eq join(' ', 0 .. $last)
        or missing($f, $in, "sizes 0 to $last, one for each &params->NAME of malloc_and_point_parameters");
    $f->{in_blocks}{ $names[$_->{1}] } = $_->{2} =~ /\b$L\b/ for @sizes;
}

# A function's copies of ParameterTensors start empty; each use of a unit fills in the pointers to its
# tensors, which are valid only while the unit is open.
sub local_tensors ($f, $in) {
    my @copies = find_all($f, $in, qr/ParameterTensors\s+(params|grads)\s*=\s*model->\g1\s*;/,
                          'ParameterTensors params = model->params;');
    $_->{new} = "ParameterTensors $_->{1} = {0};" for @copies;
    instead_each($f, @copies);
}

# Adds lines around the statements that name tensors of one unit, and pointers to the tensors.
sub use_of_unit ($f, $uses, $before, $after) {
    my (%seen, @pointers);
    for my $use (@$uses) {
        my ($struct, $name) = @$use{1, 2};
        next if $seen{"$struct.$name"}++;
        push @pointers, "$struct.$name = " . pointer($struct, $name, 0) . ';';
    }
    my $statements = span(statement($f, $uses->[0]), statement($f, $uses->[-1]));
    before($f, $statements, @$before, @pointers);
    after($f, $statements, @$after) if @$after;
}

sub uses_in ($f, $in) {
    return find_all($f, $in, qr/\b(params|grads)\.(\w+)/,
                    'params.NAME or grads.NAME outside the loop over the layers');
}

sub outside_layers ($f, $use) {
    exists $f->{in_blocks}{$use->{2}} && !$f->{in_blocks}{$use->{2}}
        or missing($f, $use, "$use->{1}.$use->{2} to be a tensor outside the layers");
}

# Treats a range as one use of the embedding unit: adds hooks around all statements that name a tensor outside
# the layers.
sub embedding_use ($f, $in, $way) {
    my @uses = uses_in($f, $in);
    outside_layers($f, $_) for @uses;
    my @hooks = map { "z_check(zero_${_}_$way(z, Z_EMBEDDING));" } qw(pre post);
    use_of_unit($f, \@uses, [$hooks[0]], [$hooks[1]]);
}

# A pass of train_gpt2.c: the embedding unit is used before and after the loop over the layers. The loop's
# body has hooks at both ends.
sub each_use ($f, $in, $way) {
    local_tensors($f, $in);
    embedding_use($f, before_loop($f, $in), $way);
    my $loop = layer_loop($f, $in);
    layer_pointers($f, $loop, "z_check(zero_pre_$way(z, Z_BLOCKS + $loop->{layer}));\n");
    after($f, trimmed($f, $loop), "z_check(zero_post_$way(z, Z_BLOCKS + $loop->{layer}));");
    embedding_use($f, after_loop($f, $in), $way);
}

# Replaces the pointers to a layer's tensors; z_param() and z_grad() check their offsets. Any other use of the
# tensors in the loop does not compile.
sub layer_pointers ($f, $loop, $hook = '') {
    my @pointers = find_all($f, $loop,
        qr/((?:const\s+)?floatX?\s*\*)\s*(\w+)\s*=\s*(params|grads)\.(\w+)\s*\+\s*([^;]*);/,
        'float* NAME = params.TENSOR + OFFSET;');
    for my $p (@pointers) {
        my ($type, $name, $struct, $tensor, $offset) = @$p{1 .. 5};
        $f->{in_blocks}{$tensor} or missing($f, $p, "$struct.$tensor to be a tensor of each layer");
        $p->{new} = "$type $name = " . pointer($struct, $tensor, $offset) . ';';
    }
    $pointers[0]{new} = "enum { params, grads }; // hides the tensors\n$hook$pointers[0]{new}";
    instead_each($f, @pointers);
}

# Returns the body of the loop over the layers. (If a layer does not reach the hook at its end, the plugin
# refuses the next one.)
sub layer_loop ($f, $in) {
    my $L = find($f, $in, '<L> = model->config.num_layers;')->{1};
    my $up = '0\s*;\s*\g1\s*<\s*' . $L . '\s*;\s*(?:\g1\s*\+\+|\+\+\s*\g1)';
    my $down = $L . '\s*-\s*1\s*;\s*\g1\s*>=\s*0\s*;\s*(?:\g1\s*--|--\s*\g1)';
    my $for = find($f, $in, qr/\bfor\s*\(\s*int\s+(\w+)\s*=\s*(?:$up|$down)\s*\)\s*(?=\{)/,
                   "a loop over the layers: for (int l = 0; l < $L; l++) {, or from $L-1 down");
    my $body = within(braces($f, $for->{to}), $in);
    return { %$body, layer => $for->{1}, layers => $L, start => $for->{from} };
}

# Returns whether a backward pass follows this call of gpt2_forward in the same block.
sub trains ($f, $call) {
    my $end = end_of_block($f, $call->{to}) // length $f->{mask};
    return mask_of($f, { from => $call->{to}, to => $end }) =~ /\bgpt2_backward(?:_and_reduce)?\b/;
}

# Each pass begins with a call: the training pass, and evaluations, which all ranks run. $micro: "NUMBER, OF".
sub begin_passes ($f, $in, $micro) {
    for my $pass (find_all($f, $in, 'gpt2_forward(<...>);')) {
        my @list = split /\s*,\s*/, $pass->{1};
        my ($inputs, $B, $T) = @list[1, -2, -1];
        before($f, statement($f, $pass), !trains($f, $pass) ? 'z_check(zero_begin_eval(z));' :
               ("z_check(zero_check_batch(z, $inputs, (size_t)$B * $T * sizeof(*$inputs)));",
                "z_check(zero_begin_train(z, $micro));"));
    }
}

sub before_loop ($f, $in) { return { %$in, to => layer_loop($f, $in)->{start} } }
sub after_loop ($f, $in) { return { %$in, from => layer_loop($f, $in)->{to} } }

# Returns the calls of dataloader_init, with {1} the first four arguments, {2} the loader, {3} the pattern,
# and {4} what follows the rank and the number of ranks.
sub loaders ($f, $in) {
    my $first = qr/\(\s*&(\w+)\s*,([^,;]+),[^,;]+,[^,;]+,/;
    return find_all($f, $in, qr/dataloader_init\s*($first)[^,;]+,[^,;)]+([^;]*;)/,
                    'dataloader_init(&LOADER, PATTERN, B, T, RANK, RANKS, ...);');
}

# The ranks compare their inputs: the parameters, and the files of these data loaders.
sub compare_inputs ($f, @loaders) {
    after($f, $loaders[-1], map { "z_same_data(\"$_->{2}\", $_->{2}.B, $_->{2}.T,$_->{3});" } @loaders);
}

# Removes the fields of GPT2 for the memory that the plugin now holds, and the statements that clear, check or
# free them. Any other use then does not compile.
sub remove_fields ($f, @names) {
    my $struct = find($f, whole($f), qr/typedef\s+struct\s*\{[^}]*\}\s*GPT2\s*;/, 'the struct GPT2');
    my @ranges = map { find($f, $struct, qr/\b\w+[\s*]+$_\s*;/, "a field $_ of GPT2, by itself") } @names;
    my $field = 'model\s*->\s*(?:' . join('|', @names) . ')';
    my $null = '(?:NULL|nullptr)';
    my @rest = grep { !is_replaced($f, $_->{from}) } find_any($f, whole($f),
        qr/\b(?:$field\s*=\s*$null\s*;|assert\s*\(\s*$field\s*==\s*$null\s*\)\s*;
             |if\s*\(\s*$field\s*!=\s*$null\s*\)\s*\{[^{};]*;\s*\}
             |free\s*\(\s*$field\s*\)\s*;|cudaFreeCheck\s*\(\s*&\s*$field\s*\)\s*;
             |(if)\s*\(\s*$field\s*==\s*$null\s*\)\s*\{)/x);
    instead($f, $_, 'if (z == NULL) {') for grep { $_->{1} } @rest;
    without($f, span(@$_[0, -1])) for adjacent($f, @ranges, grep { !$_->{1} } @rest);
}

1;
