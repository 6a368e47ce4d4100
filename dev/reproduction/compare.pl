#!/usr/bin/env perl
# Compares the losses of dev/reproduction/run.sh's runs: prints the table, and draws FOLDER/reproduction.svg.
#   dev/reproduction/compare.pl FOLDER        FOLDER contains the runs. Exit status 1: a bound is exceeded
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/../pictures";
use Run;
use Svg;

my ($folder) = @ARGV;
# How far a loss may be from llm.c's.
my %MOST = (fp32 => 1e-5, bf16 => 0.1);
my @GROUPS = (['llmc.fp32', 'llm.c', $Svg::INK], ['torch.fp32', 'PyTorch fp32', '#56b4e9'],
    ['here.fp32', 'here fp32, stages 0 to 3', '#0072b2'], ['torch.bf16', 'PyTorch bf16', '#e69f00'],
    ['here.bf16', 'here bf16, stages 0 to 3', '#cc79a7']);

my @wrong;
# Returns the largest difference of two runs, its step, and all differences.
sub apart {
    my ($a, $b) = @_;
    my ($most, $step) = (0, 1);
    my @all = map { abs($a->{loss}[$_] - $b->{loss}[$_]) } 0 .. $#{ $a->{loss} };
    for (0 .. $#all) {
        ($most, $step) = ($all[$_], $_ + 1) if !($all[$_] <= $most);     # also if it is not a number
    }
    return ($most, $step, \@all);
}

# Runs in the order of the groups: name, group, dtype, loss, hash; apart, step and differences from the first
sub runs {
    my @runs;
    for my $group (@GROUPS) {
        for my $path (sort grep { -f "$_/metrics.jsonl" } glob("$folder/$group->[0] $folder/$group->[0].?")) {
            my ($name) = $path =~ m{([^/]+)$};
            my ($who, $dtype) = split /\./, $name;
            my %run = (name => $name, group => $group, dtype => $dtype, loss => [Run::metrics($path, 'loss')],
                hash => $who eq 'here' ? Run::value($path, 'params_hash') : '');
            my $first = $runs[0] // \%run;
            @{ $run{loss} } == $ENV{STEPS} or die "$path has @{[scalar @{ $run{loss} }]} steps\n";
            @run{ 'apart', 'step', 'differences' } = apart(\%run, $first);
            push @runs, \%run;
        }
    }
    return @runs;
}

sub table {
    my @runs = @_;
    my $row = sub { print '| ', join(' | ', @_), " |\n" };
    $row->('run', 'last loss', 'largest difference from llm.c', 'from PyTorch', 'params_hash');
    $row->(('---') x 5);
    for my $run (@runs) {
        my ($torch) = grep { $_->{name} eq "torch.$run->{dtype}" } @runs;
        my @torch = $torch && $torch != $run ? apart($run, $torch) : ();
        my ($stage) = $run->{name} =~ /\.(\d)$/;
        my $label = defined $stage ? "here $run->{dtype}, stage $stage" : $run->{group}[1];
        $row->($label, sprintf('%.6f', $run->{loss}[-1]),
            $run == $runs[0] ? '' : sprintf('%.1e at step %d', @$run{ 'apart', 'step' }),
            @torch ? sprintf('%.1e at step %d', @torch) : '', $run->{hash});
    }
}

sub check {
    my @runs = @_;
    for my $run (@runs) {
        push @wrong, sprintf('%s is %.1e from llm.c at step %d, more than %g', @$run{qw(name apart step)},
            $MOST{ $run->{dtype} }) if !($run->{apart} <= $MOST{ $run->{dtype} });
        my ($stage0) = grep { $_->{name} eq "here.$run->{dtype}.0" } @runs;
        push @wrong, "$run->{name} has other bits than stage 0" if $run->{hash} && $run->{hash} ne $stage0->{hash};
    }
}

# ---- the picture

sub picture {
    my @runs = @_;
    my ($left, $right) = (58, 830);
    my $steps = @{ $runs[0]{loss} };
    my $bin = $steps > 200 ? int($steps / 200) : 1;     # steps per point
    my $curve = sub {       # values, function of a point's values, function to y
        my ($values, $of, $y) = @_;
        return [map { [$left + ($_ + $bin / 2) / $steps * ($right - $left),
            $y->($of->(@$values[$_ .. ($_ + $bin > $steps ? $steps : $_ + $bin) - 1]))] }
            map { $_ * $bin } 0 .. ($steps - 1) / $bin];
    };
    my $mean = sub { my $sum = 0; $sum += $_ for @_; $sum / @_ };
    my $largest = sub { (sort { $b <=> $a } @_)[0] };
    my %of;
    for (@runs) { $of{ $_->{group}[0] } = $_ if !$of{ $_->{group}[0] } || $_->{apart} > $of{ $_->{group}[0] }{apart} }
    my @groups = grep { $of{ $_->[0] } } @GROUPS;
    Svg::page(840, 590, "The same GPT-2 for $steps steps: llm.c, PyTorch, and here at stages 0 to 3",
        'largest difference from llm.c: ' . join(', ', map { (split /,/, $_->[1])[0]
        . sprintf(' %.1e', $of{ $_->[0] }{apart}) } @groups[1 .. $#groups]));
    Svg::legend(0, 62, map { [$_->[2], $_->[1]] } @groups);
    my ($top, $bottom, $most) = (92, 320, 6);
    Svg::y_axis($left, $right - $left, $top, $bottom, $most, 'loss');
    Svg::x_axis($left, $right - $left, $bottom, $steps, $bin > 1 ? "step; a point is the mean of $bin" : 'step');
    my %width = map { $GROUPS[$_][0] => 13 - 2.8 * $_ } 0 .. $#GROUPS;
    for my $run (@runs) {
        Svg::line($curve->($run->{loss}, $mean, sub { $bottom - $_[0] / $most * ($bottom - $top) }),
            $run->{group}[2], width => $width{ $run->{group}[0] });
    }
    ($top, $bottom) = (385, 545);
    my ($low, $high) = (-8, 0);                         # powers of ten
    my $y_of = sub {
        my $power = $_[0] > 0 ? log($_[0]) / log(10) : $low;
        $power = $low if $power < $low;
        return $bottom - ($power - $low) / ($high - $low) * ($bottom - $top);
    };
    for (map { 2 * $_ } $low / 2 .. $high / 2) {
        my $y = $y_of->(10**$_);
        Svg::line([[$left, $y], [$right, $y]], $Svg::INK, opacity => .3);
        Svg::text($left - 6, $y + 4, $_ ? "1e$_" : 1, anchor => 'end');
    }
    Svg::text(0, $top - 12, 'difference of the loss from llm.c', bold => 1);
    Svg::x_axis($left, $right - $left, $bottom, $steps, $bin > 1 ? "step; a point is the largest of $bin" : 'step');
    for my $run (@runs[1 .. $#runs]) {
        Svg::line($curve->($run->{differences}, $largest, $y_of), $run->{group}[2], width => 1.5);
    }
    open(my $out, '>', "$folder/reproduction.svg") or die "$folder/reproduction.svg: $!\n";
    select($out);
    Svg::finish();
    select(STDOUT);
    close($out) or die "$folder/reproduction.svg: $!\n";
}

my @runs = runs();
table(@runs);
picture(@runs);
check(@runs);
print STDERR map { "WRONG: $_\n" } @wrong;
exit(@wrong ? 1 : 0);
