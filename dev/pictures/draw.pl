#!/usr/bin/env perl
# Writes one picture of the tutorial as SVG to standard output; scripts/pictures.sh makes the runs for it.
#   dev/pictures/draw.pl NAME FOLDER        FOLDER contains the runs
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Run;
use Svg;

my ($name, $runs) = @ARGV;
my @STATES = qw(parameters gradients master first second);
my %LABEL = (parameters => 'parameters', gradients => 'gradients', master => 'master weights',
    first => 'first moment', second => 'second moment');
my %C = %Svg::COLOR;
my $NETWORK = ($ENV{rate} // '') =~ s{(\d+)gbit}{$1 Gbit/s network}r;
my @LANES = ([$C{forward}, 'forward'], [$C{backward}, 'backward'], [$C{update}, 'AdamW'],
    [$C{gather}, 'gather'], [$C{reduce}, 'reduction']);

# One rank's states as a stack from y down, `scale` pixels per MiB; its parts of a split state are drawn
# where they are in the whole state.
sub rank_stack {
    my ($x, $y, $w, $scale, $rank, $plan, $whole) = @_;
    for my $state (@STATES) {
        my ($all, $held) = map { $_->{states}{$state} * $scale } $whole, $plan;
        my $split = $held < 0.99 * $all;
        Svg::rect($x, $y, $w, $all, $Svg::INK, ghost => 1) if $split;
        Svg::rect($x, $y + ($split ? $rank * $held : 0), $w, $held, $C{$state});
        $y += $all + 2;
    }
}

sub four_stages {
    my @plans = map { Run::plan("$runs/plan/stage$_.ranks4", $_) } 0 .. 3;
    my @split = ('nothing is split', 'optimizer states split', '+ gradients', '+ parameters');
    my ($left, $top, $scale) = (150, 104, 250 / $plans[0]{total});
    Svg::page(840, 462, 'ZeRO on four ranks: who holds what',
        "GPT-2 $plans[0]{millions}M (d12), $plans[0]{numbers}; heights are bytes, pale: held by other ranks");
    my $y = $top;
    for my $state (@STATES) {
        my $mib = $plans[0]{states}{$state};
        Svg::text($left - 14, $y + $mib * $scale / 2, $LABEL{$state}, anchor => 'end', bold => 1);
        Svg::text($left - 14, $y + $mib * $scale / 2 + 14, sprintf('%.0f MiB', $mib), anchor => 'end');
        $y += $mib * $scale + 2;
    }
    for my $stage (0 .. 3) {
        my ($plan, $x) = ($plans[$stage], $left + 174 * $stage);
        my $middle = { anchor => 'middle' };
        Svg::text($x + 75, $top - 32, "stage $stage", anchor => 'middle', bold => 1, size => 15);
        Svg::text($x + 75, $top - 14, $split[$stage], %$middle);
        for my $rank (0 .. 3) {
            rank_stack($x + 39 * $rank, $top, 33, $scale, $rank, $plan, $plans[0]);
            Svg::text($x + 39 * $rank + 16, $y + 16, $rank, %$middle);
        }
        Svg::text($x + 75, $y + 43, sprintf('%.0f MiB', $plan->{total}), anchor => 'middle', bold => 1,
            size => 15);
        Svg::text($x + 75, $y + 62, $plan->{formula}, %$middle);
        Svg::text($x + 75, $y + 80, sprintf('%.0f MiB', $plan->{gathers} + $plan->{reductions}), %$middle);
    }
    Svg::text($left - 14, $y + 16, 'rank', anchor => 'end');
    Svg::text($left - 14, $y + 43, 'a rank holds', anchor => 'end', bold => 1);
    Svg::text($left - 14, $y + 62, 'formula', anchor => 'end');
    Svg::text($left - 14, $y + 80, 'sent in a step', anchor => 'end');
}

sub memory_by_stage {
    my ($left, $top, $bottom, $most) = (50, 96, 330, 2000);
    my $plan = Run::plan("$runs/plan/stage0.ranks1", 0);
    Svg::page(840, 376, "What a rank holds at each stage, on 1 to 8 ranks",
        "GPT-2 $plan->{millions}M (d12), $plan->{numbers}; activations for $plan->{batch}");
    Svg::y_axis($left, 780, $top, $bottom, $most, 'MiB');
    my $scale = ($bottom - $top) / $most;
    for my $stage (0 .. 3) {
        my $x = $left + 8 + 164 * $stage;
        for my $ranks (1 .. 8) {
            $plan = Run::plan("$runs/plan/stage$stage.ranks$ranks", $stage);
            my $y = $bottom;
            for my $state (@STATES) {
                my $h = $plan->{states}{$state} * $scale;
                Svg::rect($x, $y -= $h, 15, $h - 0.5, $C{$state});
            }
            Svg::text($x + 7.5, $bottom + 15, $ranks, anchor => 'middle', size => 11);
            Svg::text($x + ($ranks == 1 ? 7.5 : 11), $y - 5, sprintf('%.0f', $plan->{total}),
                anchor => 'middle', size => 11)
                if $ranks == 1 || $stage && $ranks % 4 == 0;
            $x += 18;
        }
        Svg::text($x - 75, $bottom + 33, "stage $stage: $plan->{formula}", anchor => 'middle');
    }
    for my $recompute (0 .. 3) {
        my ($x, $h) = ($left + 676 + 24 * $recompute, $plan->{at}[$recompute] * $scale);
        Svg::rect($x, $bottom - $h, 20, $h, $C{activations});
        Svg::text($x + 10, $bottom - $h - 5, sprintf('%.0f', $plan->{at}[$recompute]), anchor => 'middle',
            size => 11);
        Svg::text($x + 10, $bottom + 15, $recompute, anchor => 'middle', size => 11);
    }
    Svg::text($left + 722, $bottom + 33, 'recompute 0 to 3', anchor => 'middle');
    Svg::legend($left, 62, (map { [$C{$_}, $LABEL{$_}] } @STATES), [$C{activations}, 'activations']);
}

sub shard_map {
    my @units = (Run::shard_map("$runs/shard_map"))[0, 1];
    my ($left, $step) = (84, 144);
    my ($longest) = sort { $b <=> $a } map { 4 * $_->{parts}[1][0] } @units;
    my $scale = (836 - $left) / $longest;
    Svg::page(840, 350, "Which rank owns which element: two units on four ranks",
        Run::value("$runs/shard_map", 'model') . '; every tensor starts at a multiple of 128 elements');
    for my $i (0 .. 1) {
        my ($unit, $y) = ($units[$i], 90 + $step * $i);
        my $part = $unit->{parts}[1][0];
        Svg::text(0, $y + 22, $unit->{name}, bold => 1);
        Svg::text(0, $y + 62, 'ranks');
        Svg::rect($left, $y, 4 * $part * $scale, 36, $Svg::INK, ghost => 1);
        my $real = 0;
        for my $tensor (@{ $unit->{tensors} }) {
            my ($what, $from, $elems) = @$tensor;
            Svg::rect($left + $from * $scale, $y, $elems * $scale - 0.5, 36, $C{forward});
            Svg::line([[$left + $from * $scale, $y - 3], [$left + $from * $scale, $y + 36]], $Svg::INK);
            my $x = $left + $from * $scale;
            Svg::text($x + 3, $y - 7, $what, size => 10, turn => -50);
            $real += $elems;
        }
        for my $rank (0 .. 3) {
            my $x = $left + $rank * $part * $scale;
            Svg::rect($x + 0.5, $y + 44, $part * $scale - 1, 26, $Svg::SERIES[$rank],
                label => $part * $scale > 110 ? "rank $rank: $part elements" : "rank $rank");
            Svg::text($x, $y + 84, $rank * $part, size => 10);
        }
        Svg::text($left + 4 * $part * $scale, $y + 98, sprintf('%d elements of tensors, %d of padding '
            . '(%.0f %%)', $real, 4 * $part - $real, 100 - 25 * $real / $part), anchor => 'end', size => 11);
    }
    Svg::legend($left, 62, [$C{forward}, 'a tensor'], [$Svg::INK, 'padding: held and sent, never used', 1]);
}

# ---- lines of time

# Joins overlapping events, such as the reductions of a bucket's units, into one that is named after all.
sub joined {
    my @joined;
    for (@_) {
        my $last = $joined[-1];
        if ($last && $_->{from} < $last->{to}) {
            $last->{to} = $_->{to} if $_->{to} > $last->{to};
            $last->{unit} .= "+$_->{unit}" if "+$last->{unit}+" !~ /\+\Q$_->{unit}\E\+/;
        } else {
            push @joined, {%$_};
        }
    }
    return @joined;
}

# Bars of a lane within a step of ms, for events of the given kinds, with their units as labels
sub lane {
    my ($x, $y, $h, $scale, $events, $ms, @kinds) = @_;
    for my $kind (@kinds) {
        my @shown = grep { $_->{kind} eq $kind && $_->{to} > 0 && $_->{from} < $ms } @$events;
        @shown = grep { $_->{unit} eq '' } @shown if $kind eq 'update';     # the rest is part of it
        for (joined(@shown)) {
            my ($from, $to) = ($_->{from} < 0 ? 0 : $_->{from}, $_->{to} > $ms ? $ms : $_->{to});
            my $w = ($to - $from) * $scale;
            Svg::rect($x + $from * $scale, $y, $w < 0.8 ? 0.8 : $w, $h, $C{$kind} // $Svg::INK,
                label => $_->{unit}, ghost => $kind eq 'wait');
        }
    }
}

sub model_and_ranks {
    my ($folder) = @_;
    my $ranks = Run::value($folder, 'ranks');
    return sprintf('GPT-2 of %.1f million parameters (%s), %d rank%s',
        Run::value($folder, 'parameters') / 1e6, Run::value($folder, 'model') =~ s/, longest.*//r,
        $ranks, $ranks > 1 ? 's' : '');
}

# Two runs, one above the other, on the same time scale. rows: [folder, title]
sub timelines {
    my ($title, @rows) = @_;
    my ($left, $right) = (80, 830);
    my @steps = map { [Run::step_of("$runs/$_->[0]")] } @rows;
    my ($longest) = sort { $b <=> $a } map { $_->[1] } @steps;
    my $scale = ($right - $left) / $longest;
    Svg::page(840, 364, $title, model_and_ranks("$runs/$rows[0][0]") . ", $NETWORK; "
        . 'rank 0; E: embedding');
    for my $i (0 .. 1) {
        my ($events, $ms) = @{ $steps[$i] };
        my $y = 84 + 120 * $i;
        Svg::text($left, $y + 8, sprintf('%s: %.0f ms', $rows[$i][1], $ms), bold => 1);
        Svg::text($left - 8, $y + 35, 'compute', anchor => 'end');
        Svg::text($left - 8, $y + 73, 'network', anchor => 'end');
        lane($left, $y + 18, 26, $scale, $events, $ms, qw(wait forward backward update));
        lane($left, $y + 56, 26, $scale, $events, $ms, qw(gather reduce));
        for my $sent (grep { $_->{kind} eq 'reduce' && $_->{from} > 0 && $_->{from} < $ms } @$events) {
            my ($made) = grep { $_->{kind} eq 'backward' && $_->{unit} eq $sent->{unit}
                && $_->{from} < $sent->{from} } reverse @$events;
            Svg::line([[$left + $made->{to} * $scale, $y + 44], [$left + $sent->{from} * $scale, $y + 56]],
                $Svg::INK);
        }
    }
    Svg::x_axis($left, $right - $left, 316, $longest, 'ms since the step began');
    Svg::legend($left, 62, @LANES, [$Svg::INK, 'waits for the network', 1]);
}

sub buckets_timeline {
    timelines('Stage 2: a bucket of gradients leaves while backward goes on',
        ['buckets1', 'a bucket for each block'], ['buckets3', 'three blocks in a bucket']);
}

sub overlap_timeline {
    timelines('Stage 3: communication between computations, and at the same time',
        ['overlap0', 'overlap off'], ['overlap1', 'overlap on']);
}

# The times at which a unit is whole on this rank: from the start of each gather to the end of the backward
# before the next gather or, if there is none, of the last forward.
sub held {
    my ($unit, $events, $ms) = @_;
    my @of_unit = grep { $_->{unit} eq $unit && $_->{kind} =~ /gather|forward|backward/ } @$events;
    my @held;
    for my $event (@of_unit) {
        if ($event->{kind} eq 'gather') {
            push @held, { from => $event->{from}, to => $event->{to}, bytes => $event->{bytes} };
        } elsif (@held && !$held[-1]{done}) {
            $held[-1]{to} = $event->{to};
            $held[-1]{done} = $event->{kind} eq 'backward';
        }
    }
    return grep { $_->{to} > 0 && $_->{from} < $ms } @held;
}

# Draws a row for each unit, from y down. Returns the MiB of all units, and the changes over time of the MiB
# that are whole.
sub rows_of_units {
    my ($left, $y, $scale, $ranks, $events, $ms) = @_;
    my ($all, %change) = (0);
    for my $unit (Run::units($events)) {
        Svg::text($left - 8, $y + 16, $unit eq 'E' ? 'embedding' : "block $unit", anchor => 'end');
        my @held = held($unit, $events, $ms);
        for (@held) {
            my ($from, $to) = ($_->{from} < 0 ? 0 : $_->{from}, $_->{to} > $ms ? $ms : $_->{to});
            Svg::rect($left + $from * $scale, $y, ($to - $from) * $scale, 21, $Svg::INK, ghost => 1);
            my $mib = $_->{bytes} * $ranks / ($ranks - 1) / 1048576;
            $change{$from} += $mib;
            $change{$to} -= $mib;
        }
        $all += $held[0]{bytes} * $ranks / ($ranks - 1) / 1048576;
        my @own = grep { $_->{unit} eq $unit } @$events;
        $_->{unit} = '' for @own;
        lane($left, $y, 21, $scale, \@own, $ms, qw(gather forward backward));
        $y += 25;
    }
    return ($all, %change);
}

sub sawtooth {
    my ($left, $right, $top, $bottom) = (80, 830, 325, 465);
    my $folder = "$runs/sawtooth";
    my ($events, $ms) = Run::step_of($folder);
    my $scale = ($right - $left) / $ms;
    my $ranks = Run::value($folder, 'ranks');
    Svg::page(840, 512, 'Stage 3: which units are whole on this rank, and the memory of their parameters',
        model_and_ranks($folder) . ", $NETWORK; rank 0, one step");
    my ($all, %change) = rows_of_units($left, 78, $scale, $ranks, $events, $ms);
    my $height = ($bottom - $top) / $all;
    my ($shard, $now, @points) = ($all / $ranks, $all / $ranks);
    for my $t (sort { $a <=> $b } 0, $ms, keys %change) {
        push @points, [$left + $t * $scale, $bottom - $now * $height];
        $now += delete $change{$t} // 0;
        push @points, [$left + $t * $scale, $bottom - $now * $height];
    }
    Svg::y_axis($left, $right - $left, $top, $bottom, $all, 'MiB');
    Svg::rect($left, $bottom - $shard * $height, $right - $left, $shard * $height, $C{first});
    Svg::text($left + 8, $bottom - 8, sprintf('its own 1/%d of all, %.1f MiB', $ranks, $shard),
        fill => '#000');
    Svg::line(\@points, $C{gather}, width => 2.5);
    Svg::line([[$left, $top], [$right, $top]], $C{reduce}, width => 2, dash => '6 4');
    Svg::text($left + 8, $top - 6, sprintf('stages 0 to 2: all parameters, %.1f MiB', $all));
    Svg::x_axis($left, $right - $left, $bottom, $ms, 'ms since the step began');
    Svg::legend($left, 62, @LANES[3, 0, 1], [$Svg::INK, 'whole on this rank', 1]);
}

# One step of a run with its states on disk. The update is drawn as its parts, one per unit.
sub states_on_disk {
    my ($left, $right, $y) = (80, 830, 78);
    my $folder = "$runs/states_on_disk";
    my ($events, $ms) = Run::step_of($folder);
    my $scale = ($right - $left) / $ms;
    Svg::page(840, 352, 'States on disk: what a rank reads and writes in one step',
        model_and_ranks($folder) . '; rank 0; E: embedding');
    for (@$events) { $_->{kind} = 'part' if $_->{kind} eq 'update' && $_->{unit} ne '' }
    for (['compute', 'forward', 'backward'], ['update', 'part'], ['network', 'gather', 'reduce'],
         ['disk reads', 'read'], ['disk writes', 'write']) {
        my ($label, @kinds) = @$_;
        Svg::text($left - 8, $y + 17, $label, anchor => 'end');
        lane($left, $y, 26, $scale, $events, $ms, @kinds);
        $y += 44;
    }
    Svg::x_axis($left, $right - $left, 302, $ms, 'ms since the step began');
    Svg::legend($left, 62, @LANES[0, 1], [$C{part}, "a unit's update, with its waits"], @LANES[3, 4],
        [$C{read}, 'read'], [$C{write}, 'write']);
}

# ---- curves and bars

sub same_loss {
    my ($left, $right, $top, $bottom) = (50, 830, 70, 330);
    my @loss = map { [Run::metrics("$runs/loss$_", 'loss')] } 0 .. 3;
    my ($steps, $most) = (scalar @{ $loss[0] }, 6);
    my $apart = 0;
    for my $stage (1 .. 3) {
        for (0 .. $steps - 1) {
            my $difference = abs($loss[$stage][$_] - $loss[0][$_]);
            $apart = $difference if $difference > $apart;
        }
    }
    Svg::page(840, 376, 'The same loss at every stage', model_and_ranks("$runs/loss0")
        . "; largest difference over $steps steps: " . ($apart || 'none'));
    Svg::y_axis($left, $right - $left, $top, $bottom, $most, 'loss');
    Svg::x_axis($left, $right - $left, $bottom, $steps, 'step');
    for my $stage (0 .. 3) {
        my @points = map { [$left + ($_ + 1) / $steps * ($right - $left),
            $bottom - $loss[$stage][$_] / $most * ($bottom - $top)] } 0 .. $steps - 1;
        Svg::line(\@points, $Svg::SERIES[$stage], width => 13 - 3.7 * $stage);
        my $y = $top + 20 + 22 * $stage;
        Svg::line([[500, $y - 4], [530, $y - 4]], $Svg::SERIES[$stage], width => 13 - 3.7 * $stage);
        Svg::text(540, $y, "stage $stage: params_hash " . Run::value("$runs/loss$stage", 'params_hash'));
    }
}

# The losses of scripts/one_hour.sh: every step's (pale), their mean over 50 steps, and validation
sub one_hour {
    my ($left, $right, $top, $bottom, $most) = (50, 812, 70, 330, 3);
    my @loss = Run::metrics("$runs/run", 'loss');
    my @val = map { /^s:(\d+) tel:(.*)/ ? [$1, $2] : () } Run::lines_of("$runs/run/main.log");
    my $steps = @loss;
    my $minutes = 0;
    $minutes += $_ / 60000 for Run::metrics("$runs/run", 'ms');
    Svg::page(840, 376, 'An hour on two cores: a GPT-2 learns to write this project',
        model_and_ranks("$runs/run") . sprintf('; %d steps in %.0f minutes', $steps, $minutes));
    Svg::y_axis($left, $right - $left, $top, $bottom, $most, 'loss');
    Svg::x_axis($left, $right - $left, $bottom, $steps, 'step');
    my ($x, $y) = (($right - $left) / $steps, ($bottom - $top) / $most);       # pixels of a step, of a nat
    my $point = sub { [$left + $_[0] * $x, $bottom - $_[1] * $y] };
    my @mean;
    for my $i (49 .. $#loss) {
        my $sum = 0;
        $sum += $_ for @loss[$i - 49 .. $i];
        push @mean, $point->($i + 1, $sum / 50) if $sum / 50 < $most;
    }
    Svg::line([map { $point->($_ + 1, $loss[$_]) } grep { $loss[$_] < $most } 0 .. $#loss], $C{forward},
        opacity => .4);
    Svg::line(\@mean, $C{gather}, width => 2);
    Svg::line([map { $point->(@$_) } grep { $_->[1] < $most } @val], $C{backward}, width => 2.5);
    my ($step, $last) = @{ $val[-1] };
    Svg::text($right, $point->($step, $last)->[1] - 10, sprintf('%.3f nats, %.2f bits per byte', $last,
        $last / log(2)), anchor => 'end', bold => 1);
    Svg::legend($left + 400, 90, [$C{gather}, 'training'],
        [$C{backward}, 'validation: files it has not seen']);
}

my %pictures = map { $_ => \&$_ } qw(four_stages memory_by_stage shard_map buckets_timeline overlap_timeline
    sawtooth same_loss states_on_disk one_hour);
die "draw.pl: there is no picture $name\n" if !$pictures{$name};
$pictures{$name}->();
Svg::finish();
