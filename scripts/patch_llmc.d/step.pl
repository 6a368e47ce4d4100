# Recognises the training step of train_gpt2.cu: a loop over micro-batches with one forward and one backward
# pass each, then one update. Also checks which functions receive the model. (The proof covers the step of
# train_gpt2.c by running it.)
use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

sub calls ($f, $in, $name) {
    return find_any($f, $in, qr/(?<![\w.>])$name\s*\(/);
}

my $KNOWN_STEPS = 'the plugin supports steps with one forward pass, one backward pass and one update';

# Returns the call of a function in a range, and refuses a second call.
sub only_call ($f, $in, $name) {
    my @calls = calls($f, $in, $name);
    @calls or missing($f, $in, "a call of $name");
    @calls == 1
        or refuse($f, $calls[1]{from}, "$name is called a second time in $in->{function}(); $KNOWN_STEPS");
    $calls[0]{name} = $name;
    return $calls[0];
}

# A call must be a separate statement, directly in the block.
sub directly_in ($f, $block, @calls) {
    for my $call (@calls) {
        my $is_statement = statement($f, $call)->{from} == $call->{from};
        $is_statement && start_of_block($f, $call->{from}) == $block
            or refuse($f, $call->{from},
                      "$call->{name} is under a condition or in a separate loop; $KNOWN_STEPS");
    }
}

sub in_order ($f, @calls) {
    for my $i (1 .. $#calls) {
        my ($first, $second) = @calls[$i - 1, $i];
        $first->{from} < $second->{from}
            or refuse($f, $second->{from}, "$second->{name} comes before $first->{name}");
    }
}

# Refuses jumps out of a step before its update; they would leave the step open in the plugin.
sub runs_through ($f, $range) {
    my ($jump) = find_any($f, $range, qr/\b(continue|break|goto|return)\b/);
    $jump and refuse($f, $jump->{from}, "$jump->{1} leaves the step between its forward pass and its update");
}

# Returns whether the backward pass follows this call of gpt2_forward in the same block.
sub trains ($f, $call) {
    my $end = end_of_block($f, $call->{to}) // length $f->{mask};
    return mask_of($f, { from => $call->{to}, to => $end }) =~ /\bgpt2_backward(?:_and_reduce)?\b/;
}

sub training_pass ($f, $in, $backward) {
    my @passes = grep { trains($f, $_) } calls($f, $in, 'gpt2_forward');
    @passes or missing($f, $in, "one block in which $backward follows gpt2_forward");
    @passes == 1
        or refuse($f, $passes[1]{from},
                  "gpt2_forward is called a second time before $backward; $KNOWN_STEPS");
    $passes[0]{name} = 'gpt2_forward';
    return $passes[0];
}

# Only these functions, and code that an edit replaces, may run passes or updates.
sub called_nowhere_else ($f, $functions, @names) {
    for my $name (@names) {
        for my $call (calls($f, whole($f), $name)) {
            my $line = mask_of($f, { from => line_start($f, $call->{from}), to => $call->{from} });
            next if $line =~ /^[A-Za-z_][\w \t*]*$/;               # its declaration or definition
            next if is_understood($f, $call->{from}) || grep { contains($_, $call->{from}) } @$functions;
            refuse($f, $call->{from}, "$name is called here too; $KNOWN_STEPS");
        }
    }
}

# The step of train_gpt2.cu: a loop over micro-batches with forward and backward; the norm; conditions that
# skip the step; and, in their last else, the clipped update.
sub accumulated_step ($f, $main) {
    my $forward = training_pass($f, $main, 'gpt2_backward_and_reduce');
    my $backward = only_call($f, $main, 'gpt2_backward_and_reduce');
    my $norm = only_call($f, $main, 'gpt2_calculate_grad_norm');
    my $update = only_call($f, $main, 'gpt2_update');
    my $loop = start_of_block($f, $backward->{from});
    directly_in($f, $loop, $forward, $backward);
    in_order($f, $forward, $backward, $norm, $update);
    over_micro_batches($f, $main, $loop, $backward);
    start_of_block($f, $norm->{from}) == start_of_block($f, $loop)
        or refuse($f, $norm->{from},
                  "$norm->{name} is under a condition or in a separate loop; $KNOWN_STEPS");
    skipped_or_clipped($f, $main, $norm, $update);
    runs_through($f, between($forward, $update));
    my @allowed = ($main, function($f, 'gpt2_validate'));
    called_nowhere_else($f, \@allowed, qw(gpt2_forward gpt2_backward_and_reduce gpt2_update));
}

# for (int micro_step = 0; micro_step < grad_accum_steps; micro_step++) {
sub over_micro_batches ($f, $main, $open, $backward) {
    my $plus_1 = '(?:\g1\s*\+\+|\+\+\s*\g1)';
    my $for = find($f, { %$main, to => $open },
                   qr/(?<!\w)for\s*\(\s*int\s+(\w+)\s*=\s*0\s*;\s*\g1\s*<\s*(\w+)\s*;\s*$plus_1\s*\)\s*\z/,
                   "a loop over the micro-batches around $backward->{name}: "
                   . 'for (int micro_step = 0; micro_step < grad_accum_steps; micro_step++) {');
    my ($step, $steps) = @$for{1, 2};
    find($f, statement($f, $backward), qr/,\s*$steps\s*,\s*$step\s*\)\s*;/,
         "$backward->{name}(..., $steps, $step), with the loop's numbers");
}

# Only this may come between the norm and the update: if (... > skip_update_...) { ... } else if ... else {
# clipping by the norm; the update }
sub skipped_or_clipped ($f, $main, $norm, $update) {
    my $result = find_code($f, statement($f, $norm), 'float <norm> = gpt2_calculate_grad_norm(...);')->{1};
    my $between = within(between(statement($f, $norm), $update), $main);
    my ($changed) = find_any($f, $between, qr/&\s*$result\b|\b$result\s*(?:[-+*\/]?=(?!=)|\+\+|--)/);
    $changed
        and refuse($f, $changed->{from},
                   "$result is changed after $norm->{name}; the plugin clips by its own norm");

    my $skip = qr/if\s*\([^{};]*>\s*skip_update_\w+\s*\)\s*\{[^{}]*\}\s*else\s*/;
    my $clips = "float grad_scale = ($result > grad_clip) ? grad_clip / $result : 1.0f;";
    my $scale = like($clips);
    find($f, $between, qr/\A[^{}]*?(?<!\w)(?:$skip)+\{\s*float\s+grad_clip\s*=[^;{}]*;\s*$scale\s*\z/,
         'between the norm and the update only: if (... > skip_update_...) {...} else { '
         . "float grad_clip = ...; $clips");
}

# The model, under any name, may only be passed to functions of this file: check_nothing_else() checks how
# they use it. Other functions would find null pointers in it.
sub model_stays_here ($f) {
    my %names = map { $_->{1} => 1 } find_any($f, whole($f), qr/\bGPT2\s*[*&]?\s*(\w+)\s*[;,)=]/);
    my $any = join '|', sort keys %names;
    my $library = qr/^(?:memset|memcpy|sizeof)$/;
    for my $use (find_any($f, whole($f), qr/(?<![\w.>])(?:$any)\b(?!\s*(?:\.|->|\())/)) {
        my $before = substr $f->{mask}, 0, $use->{from};
        next if $before =~ /\bGPT2\s*[*&]?\s*\z/ || is_understood($f, $use->{from});
        my $call = call_around($f, $use->{from});
        next if $call =~ $library || $call ne '' && defines($f, $call);
        my $to = $call eq '' ? 'used as a whole' : "passed to $call(), which this file does not define";
        refuse($f, $use->{from}, "the model is $to: its parameters and gradients are in the plugin");
    }
}

# Returns the name of the function whose arguments contain this place, or ''.
sub call_around ($f, $at) {
    my $depth = 0;
    for (my $i = $at - 1; $i >= 0; $i--) {
        my $c = substr $f->{mask}, $i, 1;
        return '' if $c =~ /[;{}]/;
        $depth++ if $c eq ')';
        next if $c ne '(';
        return substr($f->{mask}, 0, $i) =~ /(\w+)\s*\z/ ? $1 : '' if $depth == 0;
        $depth--;
    }
    return '';
}

sub defines ($f, $name) {
    my $head = qr/^\w[\w \t*&<>:]*\b$name\s*\([^;{}]*\)\s*\{/m;
    return $f->{defines}{$name} //= scalar find_any($f, whole($f), $head);
}

1;
