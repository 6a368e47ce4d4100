#!/usr/bin/env perl
# Prints what rank 0 did in a trace of the trainer (--trace FILE), for the lessons of docs/tutorial/.
#   dev/lessons/trace.pl order FILE    the last step, one line per use of a unit: what was sent after it began
#                                      and before the next use
#   dev/lessons/trace.pl time FILE     times of the median step: computing, sending, and exposed, that is,
#                                      sending while nothing is computed
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/../pictures";
use Run;

my ($what, $file) = @ARGV;
die "usage: dev/lessons/trace.pl order|time FILE\n" if @ARGV != 2 || $what !~ /^(order|time)$/;

my @all = Run::trace($file);
my @events = grep { $_->{kind} ne 'step' } @all;
my @steps = grep { $_->{kind} eq 'step' } @all;
die "$file has fewer than 3 steps\n" if @steps < 3;

sub within {
    my ($step) = @_;
    return grep { $_->{to} > $step->{from} && $_->{from} < $step->{to} } @events;
}

# ---- order

# One reduction carries a whole bucket, so its units' events overlap.
sub print_order {
    my (%bytes, $last);
    my $end = '';    # of the line before
    for my $e (within($steps[-1])) {
        my $unit = $e->{unit} =~ s/^block //r;
        if ($e->{kind} =~ /^(forward|backward)$/) { printf("$end%-8s %-9s ", $e->{kind}, $e->{unit}) }
        elsif ($e->{kind} eq 'update' && !$e->{unit}) { printf("$end%-18s ", 'update') }
        $end = "\n";
        next if $e->{kind} !~ /^(gather|reduce)$/;
        my $both_reduce = $last && $last->{kind} eq 'reduce' && $e->{kind} eq 'reduce';
        print $both_reduce && $e->{from} < $last->{to} ? "+$unit" : "  $e->{kind} $unit";
        $bytes{$e->{kind}} += $e->{bytes};
        $last = $e;
    }
    printf("\nsent: %.2f MiB by gathers, %.2f MiB by reductions\n",
        map { ($bytes{$_} // 0) / 1048576 } qw(gather reduce));
}

# ---- time

# Returns disjoint intervals, in order, that cover the same time as these.
sub union {
    my @all;
    for (sort { $a->[0] <=> $b->[0] } @_) {
        if (!@all || $_->[0] > $all[-1][1]) { push @all, [@$_] }
        elsif ($_->[1] > $all[-1][1]) { $all[-1][1] = $_->[1] }
    }
    return @all;
}
# Returns the parts of the intervals @$from, which are disjoint, that are outside of @$cut, likewise.
sub without {
    my ($from, $cut) = @_;
    my @left;
    for (@$from) {
        my ($begin, $end) = @$_;
        for my $c (grep { $_->[1] > $begin && $_->[0] < $end } @$cut) {
            push @left, [$begin, $c->[0]] if $c->[0] > $begin;
            $begin = $c->[1];
        }
        push @left, [$begin, $end] if $end > $begin;
    }
    return @left;
}
sub ms { my $sum = 0; $sum += $_->[1] - $_->[0] for @_; return $sum }

# A step computes in its passes and its update, except while the trainer's thread waits or sends.
sub times_of {
    my ($step) = @_;
    my @e = map { { %$_ } } within($step);
    for (@e) {
        $_->{from} = $step->{from} if $_->{from} < $step->{from};
        $_->{to} = $step->{to} if $_->{to} > $step->{to};
    }
    my $of = sub { union(map { [$_->{from}, $_->{to}] } grep { $_[0]->($_) } @e) };
    my @busy = $of->(sub { $_->{kind} =~ /^(forward|backward|update|squares)$/ });
    my @not = $of->(sub { $_->{lane} == 1 && $_->{kind} =~ /^(gather|reduce|wait)$/ });
    my @computes = without(\@busy, \@not);
    my @sends = $of->(sub { $_->{kind} =~ /^(gather|reduce)$/ });
    my %t = (step => $step->{to} - $step->{from}, computes => ms(@computes), sends => ms(@sends),
             exposed => ms(without(\@sends, \@computes)), exposed_by => {});
    for my $e (grep { $_->{kind} =~ /^(gather|reduce)$/ } @e) {
        $t{exposed_by}{"$e->{kind} $e->{unit}"} += ms(without([[$e->{from}, $e->{to}]], \@computes));
    }
    return \%t;
}
sub print_times {
    my @by_time = sort { $a->{step} <=> $b->{step} } map { times_of($_) } @steps[2 .. $#steps];
    my $t = $by_time[@by_time / 2];
    printf("step %.0f ms: computes %.0f ms, sends %.0f ms, exposed %.0f ms, %.0f %% of the step\n",
        @$t{qw(step computes sends exposed)}, 100 * $t->{exposed} / $t->{step});
    my $by = $t->{exposed_by};
    my @most = (sort { $by->{$b} <=> $by->{$a} } keys %$by)[0 .. 2];
    printf("exposed most: %s\n", join(', ', map { sprintf('%s %.0f ms', $_, $by->{$_}) } @most));
}

$what eq 'order' ? print_order() : print_times();
