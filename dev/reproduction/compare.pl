#!/usr/bin/env perl
# Compares the losses of dev/reproduction/run.sh's runs: prints the table, and draws FOLDER/reproduction.svg.
#   dev/reproduction/compare.pl FOLDER        FOLDER contains the runs
# Exit status: 1 if a loss is further from llm.c's than allowed, or stages differ in a bit
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/../pictures";
use List::Util qw(max sum);
use Run;
use Svg;

my ($folder) = @ARGV;
# How far a loss may be from llm.c's fp32.
my %MOST = (fp32 => 1e-5, bf16 => 0.02);
# What is drawn in one colour: the folders' name, label, colour.
my @GROUPS = (['llmc.fp32', 'llm.c fp32', $Svg::INK], ['torch.fp32', 'PyTorch fp32', '#56b4e9'],
    ['here.fp32', 'here fp32', '#0072b2'], ['torch.bf16', 'PyTorch bf16', '#e69f00'],
    ['here.bf16', 'here bf16', '#cc79a7']);

# Returns the differences of two runs' losses, the largest, and its step.
sub apart {
    my ($a, $b) = @_;
    my ($most, $step) = (0, 1);
    my @all = map { abs($a->{loss}[$_] - $b->{loss}[$_]) } 0 .. $#{ $a->{loss} };
    for (0 .. $#all) {
        ($most, $step) = ($all[$_], $_ + 1) if !($all[$_] <= $most);
        last if $most != $most;     # nan is the largest
    }
    return (\@all, $most, $step);
}

# Returns the runs in the order of the groups.
sub runs {
    my @runs;
    for my $group (0 .. $#GROUPS) {
        my ($name, $label) = @{ $GROUPS[$group] };
        for my $path (grep { -f "$_/metrics.jsonl" } map { "$folder/$name$_" } '', map { ".$_" } 0 .. 3) {
            my $run = { group => $group, label => $label, dtype => substr($name, -4), hash => '',
                loss => [Run::metrics($path, 'loss')] };
            die "$path does not have $ENV{STEPS} losses\n" if @{ $run->{loss} } != $ENV{STEPS};
            $run->{label} .= ", stage $1" if $path =~ /\.(\d)$/;
            $run->{hash} = Run::value($path, 'params_hash') if $name =~ /^here/;
            push @runs, $run;
            @$run{ 'differences', 'apart', 'step' } = apart($run, $runs[0]);
        }
    }
    return @runs;
}

sub table {
    my @runs = @_;
    my $row = sub { printf "| %-18s | %-9s | %-29s | %-24s | %-16s |\n", @_ };
    $row->('run', 'last loss', 'largest difference from llm.c', 'from PyTorch, same dtype', 'params_hash');
    $row->(('---') x 5);
    for my $run (@runs) {
        my ($torch) = grep { $_->{label} eq "PyTorch $run->{dtype}" } @runs;
        my (undef, @torch) = apart($run, $torch // $run);
        my @cells = map { $_->[0] ? sprintf('%.1e at step %d', @$_) : '' } [@$run{qw(apart step)}], \@torch;
        $row->($run->{label}, sprintf('%.6f', $run->{loss}[-1]), @cells, $run->{hash});
    }
}

# Returns what is wrong.
sub wrong {
    my @wrong;
    my %hash;       # of the first stage in each dtype
    for my $run (@_) {
        my $most = $MOST{ $run->{dtype} };
        push @wrong, sprintf('%s: %.1e from llm.c at step %d; at most %g is allowed',
            @$run{qw(label apart step)}, $most) if !($run->{apart} <= $most);
        next if $run->{hash} eq '';
        $hash{ $run->{dtype} } //= $run->{hash};
        push @wrong, "$run->{label}: bits differ from stage 0's" if $run->{hash} ne $hash{ $run->{dtype} };
    }
    return @wrong;
}

# ---- the picture

my ($LEFT, $RIGHT) = (50, 815);

# Draws a run's values, one point per `bin` steps: `of` combines their values, and `y_of` returns the height.
sub curve {
    my ($run, $values, $bin, $of, $y_of, $width) = @_;
    my ($steps, @points) = scalar @$values;
    for (my $at = 0; $at < $steps; $at += $bin) {
        my $end = $at + $bin < $steps ? $at + $bin : $steps;
        push @points, [$LEFT + ($at + $end) / 2 / $steps * ($RIGHT - $LEFT),
            $y_of->($of->(@$values[$at .. $end - 1]))];
    }
    Svg::line(\@points, $GROUPS[$run->{group}][2], width => $width);
}

sub losses {
    my ($top, $bottom, $steps, $bin, @runs) = @_;
    my $most = 1 + int(max(map { @{ $_->{loss} } } @runs));
    Svg::y_axis($LEFT, $RIGHT - $LEFT, $top, $bottom, $most, 'loss');
    Svg::x_axis($LEFT, $RIGHT - $LEFT, $bottom, $steps, "step (a point is the mean of $bin)");
    for my $run (@runs) {
        curve($run, $run->{loss}, $bin, sub { sum(@_) / @_ },
            sub { $bottom - $_[0] / $most * ($bottom - $top) }, 11 - 2.4 * $run->{group});
    }
}

sub differences {
    my ($top, $bottom, $steps, $bin, @runs) = @_;
    my ($low, $high) = (-8, 0);     # powers of ten; smaller differences are drawn at the bottom
    my $y_of = sub {
        my $power = max($low, $_[0] > 0 ? log($_[0]) / log(10) : $low);
        return $bottom - ($power - $low) / ($high - $low) * ($bottom - $top);
    };
    for (my $power = $low; $power <= $high; $power += 2) {
        my $y = $y_of->(10**$power);
        Svg::line([[$LEFT, $y], [$RIGHT, $y]], $Svg::INK, opacity => .3);
        Svg::text($LEFT - 6, $y + 4, $power ? "1e$power" : 1, anchor => 'end');
    }
    Svg::x_axis($LEFT, $RIGHT - $LEFT, $bottom, $steps, "step (a point is the largest of $bin)");
    curve($_, $_->{differences}, $bin, sub { max(@_) }, $y_of, 1.5) for @runs;
}

sub picture {
    my @runs = @_;
    my $steps = @{ $runs[0]{loss} };
    my $bin = int($steps / 200) || 1;
    my @seen = grep { my $group = $_; grep { $_->{group} == $group } @runs } 0 .. $#GROUPS;
    my @largest = map {
        my $group = $_;
        sprintf('%s %.1e', $GROUPS[$group][1], max(map { $_->{group} == $group ? $_->{apart} : 0 } @runs))
    } @seen[1 .. $#seen];
    Svg::page(840, 600, "The same GPT-2 for $steps steps in llm.c, in PyTorch, and here at stages 0 to 3",
        "largest difference from llm.c's loss: " . join(', ', @largest));
    Svg::legend(0, 62, map { [$GROUPS[$_][2], $GROUPS[$_][1]] } @seen);
    losses(94, 322, $steps, $bin, @runs);
    Svg::text(0, 376, "Difference from llm.c's loss", bold => 1);
    differences(394, 560, $steps, $bin, @runs[1 .. $#runs]);
    open(my $out, '>', "$folder/reproduction.svg") or die "$folder/reproduction.svg: $!\n";
    select($out);
    Svg::finish();
    select(STDOUT);
    close($out) or die "$folder/reproduction.svg: $!\n";
}

$| = 1;
my @runs = runs();
table(@runs);
picture(@runs);
my @wrong = wrong(@runs);
print STDERR map { "WRONG: $_\n" } @wrong;
exit(@wrong ? 1 : 0);
