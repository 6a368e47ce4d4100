# Edits for both trainers: hooks around each use of a unit and, between the hooks, pointers to its tensors.
use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

our (%files, %FILE);

sub number ($name) { return 'Z_' . uc $name }

sub pointer ($struct, $name, $layer) {
    return ($struct eq 'params' ? 'z_param(' : 'z_grad(') . number($name) . ", $layer)";
}

# Reads the fields of ParameterTensors in order. A tensor is in every layer if the number of layers is a
# factor of its size; {of_layer} holds the remaining factors.
sub read_tensors ($f) {
    my $struct = find($f, whole($f), qr/typedef\s+struct\s*\{([^}]*)\}\s*ParameterTensors\s*;/,
                      'the struct ParameterTensors');
    my $tensors = $f->{tensors} = [];
    for my $field (find_any($f, { from => $struct->{from} + 1, to => $struct->{to} },
                            qr/(\w[\w\s]*?\s*\**)\s*(\w+)\s*;/)) {
        my ($type, $name) = @$field{1, 2};
        next if !contains($struct, $field->{from}) || $field->{to} >= $struct->{to};
        $type =~ /^floatX?\s*\*$/
            or refuse($f, $field->{from}, "$name of ParameterTensors is a $type; the plugin supports only "
                      . 'tensors of the type of the model');
        push @$tensors, $name;
    }
    my $in = function($f, 'fill_in_parameter_sizes');
    my $L = find($f, $in, qr/\b(\w+)\s*=\s*config\.num_layers\s*;/, 'VARIABLE = config.num_layers;')->{1};
    my @sizes = find_all($f, $in, qr/param_sizes\[(\d+)\]\s*=\s*([^;]*);/, 'param_sizes[NUMBER] = SIZE;');
    my $last = $#$tensors;
    join(' ', sort { $a <=> $b } map { $_->{1} } @sizes) eq join(' ', 0 .. $last)
        or missing($f, $in, "sizes 0 to $last, one for each field of ParameterTensors");
    for my $size (@sizes) {
        my $name = $tensors->[$size->{1}];
        my @factors = factors($size->{2});
        my @rest = grep { $_ ne $L } @factors;
        $f->{in_blocks}{$name} = @rest < @factors;
        $f->{of_layer}{$name} = "@rest";
    }
    my $body = function($f, 'malloc_and_point_parameters');
    my @order = map { $_->{1} } find_all($f, $body, qr/&params->(\w+)/, '&params->NAME');
    "@order" eq "@$tensors"
        or missing($f, $body, 'the tensors in the order of the fields of ParameterTensors');
}

# Returns the sorted factors of a product. Any other expression is one factor.
sub factors ($product) {
    my @factors = $product =~ /\w+/g;
    return sort @factors if $product =~ /^[\w\s*()]*$/ && $product !~ /\w\s*\(|\)\s*\w|\w\s+\w/;
    return join '', split ' ', $product;
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
sub use_of_unit ($f, $uses, $layer, $before, $after) {
    my (%seen, @pointers);
    for my $use (@$uses) {
        my ($struct, $name) = @$use{1, 2};
        next if $seen{"$struct.$name"}++;
        push @pointers, "$struct.$name = " . pointer($struct, $name, $layer) . ';';
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
    use_of_unit($f, \@uses, 0, [$hooks[0]], [$hooks[1]]);
}

# In the loop over the layers: adds hooks at both ends of the body, and takes the pointers to a layer's
# parameters and gradients from the plugin.
sub layer_use ($f, $in, $way) {
    my $loop = layer_loop($f, $in);
    my $l = $loop->{layer};
    layer_pointers($f, $loop, $l, $l, "z_check(zero_pre_$way(z, Z_BLOCKS + $l));\n");
    after($f, trimmed($f, $loop), "z_check(zero_post_$way(z, Z_BLOCKS + $l));");
}

# Replaces a layer's pointers: those in the range whose index matches the pattern $index. $layer is the
# expression for the layer.
sub layer_pointers ($f, $in, $index, $layer, $hook = '') {
    my $declaration = qr/((?:const\s+)?floatX?\s*\*)\s*(\w+)\s*=\s*/;
    my @pointers = find_all($f, $in, qr/$declaration(params|grads)\.(\w+)\s*\+\s*$index(?!\w)([^;]*);/,
                            "float* NAME = params.TENSOR + $layer * ...;");
    for my $p (@pointers) {
        my ($type, $name, $struct, $tensor, $size) = @$p{1 .. 5};
        $f->{in_blocks}{$tensor} or missing($f, $p, "$struct.$tensor to be a tensor of each layer");
        my @factors = factors($size =~ s/^\s*\*//r);
        "@factors" eq $f->{of_layer}{$tensor}
            or missing($f, $p, "$struct.$tensor + $layer times the factors $f->{of_layer}{$tensor}, "
                       . 'the start of the layer');
        $p->{new} = "$type $name = " . pointer($struct, $tensor, $layer) . ';';
    }
    $pointers[0]{new} = $hook . $pointers[0]{new};
    instead_each($f, @pointers);
}

# Returns the body of the loop over the layers. (If a layer does not reach the hook at its end, the plugin
# refuses the next one.)
sub layer_loop ($f, $in) {
    my $L = find_code($f, $in, '<L> = model->config.num_layers;')->{1};
    my $up = '0\s*;\s*\g1\s*<\s*' . $L . '\s*;\s*(?:\g1\s*\+\+|\+\+\s*\g1)';
    my $down = $L . '\s*-\s*1\s*;\s*\g1\s*>=\s*0\s*;\s*(?:\g1\s*--|--\s*\g1)';
    my $for = find($f, $in, qr/\bfor\s*\(\s*int\s+(\w+)\s*=\s*(?:$up|$down)\s*\)\s*(?=\{)/,
                   "a loop over the layers: for (int l = 0; l < $L; l++) {, or from $L-1 down");
    my $body = within(braces($f, $for->{to}), $in);
    return { %$body, layer => $for->{1}, layers => $L, start => $for->{from} };
}

# Returns whether the backward pass follows this call of gpt2_forward in the same block.
sub trains ($f, $call) {
    my $end = end_of_block($f, $call->{to}) // length $f->{mask};
    return mask_of($f, { from => $call->{to}, to => $end }) =~ /\bgpt2_backward(?:_and_reduce)?\b/;
}

# Returns the statements before a training pass. $call: gpt2_forward(<...>), $micro: "NUMBER, OF".
sub begin_training ($f, $call, $micro) {
    my @list = split /\s*,\s*/, $call->{1};
    @list >= 4 or missing($f, $call, 'gpt2_forward(&model, INPUTS, ..., B, T);');
    my ($inputs, $B, $T) = @list[1, -2, -1];
    return ("z_check(zero_check_batch(z, $inputs, (size_t)$B * $T * sizeof(*$inputs)));",
            "z_check(zero_begin_train(z, $micro));");
}

sub before_loop ($f, $in) { return { %$in, to => layer_loop($f, $in)->{start} } }
sub after_loop ($f, $in) { return { %$in, from => layer_loop($f, $in)->{to} } }

# Returns the positions of the rank and the number of ranks in dataloader_init's arguments.
sub loader_arguments {
    my $f = $files{ $FILE{loader} };
    function($f, 'dataloader_init');
    my @names = map { /(\w+)\s*$/ ? $1 : '' } split /,/, $f->{parameters}{dataloader_init};
    my ($rank) = grep { $names[$_] eq 'process_rank' } 0 .. $#names;
    my ($ranks) = grep { $names[$_] eq 'num_processes' } 0 .. $#names;
    defined $rank && defined $ranks
        or stop("$f->{name}: dataloader_init has no parameters process_rank and num_processes: this data "
                . 'loader does not support ranks (llm.c before June 2024); use a newer llm.c');
    return ($rank, $ranks);
}

# Returns statements that compare the ranks' inputs: the parameters, and the files of these calls' data
# loaders.
sub compare_inputs ($f, @calls) {
    my @lines;
    for my $call (@calls) {
        $call->{1} =~ /^\s*&(\w+)\s*,\s*([^,]+?)\s*,/
            or missing($f, $call, 'dataloader_init(&LOADER, PATTERN, ...);');
        push @lines, "z_same_data(\"$1\", $1.B, $1.T, $2);";
    }
    return join "\n", @lines;
}

# Removes the fields of GPT2 for the memory that the plugin now holds, with the statements that clear, check or
# free them. Any other use then does not compile.
sub remove_fields ($f, @names) {
    my $struct = find($f, whole($f), qr/typedef\s+struct\s*\{[^}]*\}\s*GPT2\s*;/, 'the struct GPT2');
    my @ranges = map { find($f, $struct, qr/\b\w+[\s*]+$_\s*;/, "a field $_ of GPT2, by itself") } @names;
    my $field = 'model\s*->\s*(?:' . join('|', @names) . ')';
    my $null = '(?:NULL|nullptr)';
    push @ranges, grep { !is_replaced($f, $_->{from}) } find_any($f, whole($f),
        qr/\b(?:$field\s*=\s*$null|assert\s*\(\s*$field\s*==\s*$null\s*\)
             |free\s*\(\s*$field\s*\)|cudaFreeCheck\s*\(\s*&\s*$field\s*\))\s*;/x);
    without_each($f, @ranges);
}

1;
