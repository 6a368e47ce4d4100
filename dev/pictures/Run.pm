# Reads what the trainer writes: its --plan, and a run's metrics, summary, checkpoint and trace.
package Run;
use strict;
use warnings;

sub lines_of {
    my ($file) = @_;
    open(my $in, '<', $file) or die "$file: $!\n";
    my @lines = <$in>;
    close($in);
    chomp @lines;
    return @lines;
}

# In MiB: states{parameters, gradients, master, first, second}, total, gathers, reductions, and for each stage
# formula and at[recompute], the activations; also parameters, millions and numbers (the line of that name).
sub plan {
    my ($file, $stage) = @_;
    my %plan = (gathers => 0, reductions => 0);
    for (lines_of($file)) {
        $plan{states}{$1} = $2 if /^  model states (\w+)[ a-z]* ([\d.]+)$/;
        $plan{parameters} = $1 if /^model .*: (\d+) parameters/;
        $plan{numbers} = $1 if /^numbers +(.*?), recompute/;
        $plan{batch} = $1 if /^batch +(B \d+ x T \d+)/;
        $plan{$1} = $2 if /^  step: (gathers|reductions) +([\d.]+)/;
        next unless /^  $stage  (\S+(?: \+ \S+)?)  +(.*)/;
        $plan{formula} = $1;
        (undef, $plan{total}, my $working, my @with) = map { s/\*//r } split(' ', $2);
        $plan{at} = [map { $_ - $plan{total} - $working } @with];
    }
    die "$file is not a plan\n" if !$plan{total};
    $plan{millions} = sprintf('%.0f', $plan{parameters} / 1e6);
    return \%plan;
}

# The value of a member in run.json or summary.json
sub value {
    my ($folder, $key) = @_;
    for my $file ('summary.json', 'run.json') {
        for (lines_of("$folder/$file")) { return $1 if /"$key": "?((?<=")[^"]+|[^",}]+)/; }
    }
    die "$folder has no $key\n";
}

sub metrics {       # the values of one member, step by step
    my ($folder, $key) = @_;
    return map { /"$key": ([^,}]+)/ ? $1 : () } lines_of("$folder/metrics.jsonl");
}

# Units of a checkpoint: {name, elems, tensors => [[name, offset, elems], ..], parts => [[from, elems], ..]}
sub shard_map {
    my ($folder) = @_;
    my ($manifest) = glob("$folder/step_*/manifest.json");
    my (@tensors, @units);
    for (lines_of($manifest)) {
        push @tensors, [$1, eval { my $n = 1; $n *= $_ for split(/,/, $2); $n }]
            if /^ \{"name":"(\w+)","dims":\[([\d,]+)\]/;
        if (/^ \{"name":"([^"]+)","elems":(\d+),"tensors"/) {
            my $unit = { name => $1, elems => $2 };
            push @{ $unit->{tensors} }, [$tensors[$1][0], $2, $tensors[$1][1]]
                while /"tensor":(\d+),"layer":\d+,"offset":(\d+)/g;
            push @units, $unit;
        }
        while (/"unit":(\d+),"from":(\d+),"elems":(\d+)/g) { push @{ $units[$1]{parts} }, [$2, $3]; }
    }
    return @units;
}

# Returns the events of rank 0 in a trace, {kind, unit, lane, from, to, bytes}, in order, in ms.
sub trace {
    my ($file) = @_;
    my @events;
    for (lines_of($file)) {
        next unless /"ph":"X","pid":1,/;
        my ($name, $kind, $tid, $ts, $us) =
            /"name":"(.*?)","cat":"(.*?)".*"tid":(\d+),"ts":([\d.]+),"dur":([\d.]+)/ or next;
        push @events, { kind => $kind, unit => $name =~ s/^\Q$kind\E ?//r, lane => int($tid / 100),
            from => $ts / 1000, to => ($ts + $us) / 1000, bytes => /"bytes":(\d+)/ ? $1 : 0 };
    }
    return sort { $a->{from} <=> $b->{from} } @events;
}

# Returns the events of a run in ms since its shortest step began, with short names of units; and that step's
# length. Other programs disturb the shortest step least.
sub step_of {
    my ($folder) = @_;
    my @events = trace("$folder/trace.json");
    my @steps = grep { $_->{kind} eq 'step' } @events;
    my ($step) = sort { $a->{to} - $a->{from} <=> $b->{to} - $b->{from} } @steps;
    my ($begin, $end) = @$step{ 'from', 'to' };
    for (@events) {
        $_->{from} -= $begin;
        $_->{to} -= $begin;
        $_->{unit} = $_->{unit} eq 'embedding' ? 'E' : $_->{unit} =~ s/^block //r;
    }
    return (\@events, $end - $begin);
}

sub units {         # of the events: the embedding, then the blocks
    my ($events) = @_;
    my %seen = map { $_->{unit} => 1 } grep { $_->{kind} eq 'forward' } @$events;
    return ('E', sort { $a <=> $b } grep { $_ ne 'E' } keys %seen);
}

1;
