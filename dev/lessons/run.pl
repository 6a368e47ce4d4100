#!/usr/bin/env perl
# make tutorial: runs the console blocks of docs/tutorial/ and compares their output with the text; then
# checks that each lesson's solution passes, and that its stub fails every check without a crash. Needs only
# Perl's core and bash. Skips the stub of a lesson that you have begun to solve.
#   dev/lessons/run.pl BUILD [N]      N: only that lesson
#
# A block is fenced by ```console, or by ```console fails if its commands must fail. A line "$ COMMAND" runs
# from the project's root (a line that ends in \ continues); the lines after it must appear in its output in
# this order:
#   - "..." alone stands for any number of lines, and inside a line for any text; blanks in a row are equal
#   - a number with 4 or more decimals may differ by 1e-3 of its value
#   - a hash of 16 hex digits stands for any hash, but within a lesson for the same one wherever it appears
use strict;
use warnings;
use Time::HiRes 'time';

my ($build, $only) = @ARGV;
die "Usage: dev/lessons/run.pl BUILD [N]\n" if !$build;
my $folder = 'build/tutorial';          # all files of the commands go there
my $limit_s = 150;
my ($passed, $failed) = (0, 0);

# Returns the output of a command, with stderr, and its exit status; 124 if it took too long.
sub run {
    my ($command) = @_;
    local $ENV{COMMAND} = $command;
    local $ENV{CUDA_VISIBLE_DEVICES} = '';      # the text is of runs on CPUs
    my $output = `timeout -k 5 $limit_s bash -c '. scripts/mpi_env.sh; eval "\$COMMAND"' 2>&1 </dev/null`;
    return ($output, $? >> 8);
}

# ---- the text

# Returns the commands of a page: { line, command, fails, expected => [[line, text]..] }.
sub commands_of {
    my ($page) = @_;
    my ($fails, @commands);
    open(my $in, '<', $page) or die "$page: $!\n";
    while (my $text = <$in>) {
        chomp($text);
        if (!defined $fails) { $fails = defined $1 if $text =~ /^```console( fails)?$/ }
        elsif ($text eq '```') { undef $fails }
        elsif ($text =~ /^\$ (.*)/) {
            my ($command, $line) = ($1, $.);
            while ($command =~ /\\$/ && defined(my $more = <$in>)) { chomp($more); $command .= "\n$more" }
            push @commands, { line => $line, command => $command, fails => $fails, expected => [] };
        }
        elsif (@commands) { push @{ $commands[-1]{expected} }, [$., $text] }
        else { die "$page:$.: a block begins with a line \"\$ COMMAND\"\n" }
    }
    return @commands;
}

# ---- the comparison

my $number = qr/-?\d+\.\d{4,}(?:e[-+]\d+)?/;
my $hash = qr/\b[0-9a-f]{16}\b/;

# Returns a pattern for a line of the text, with one capture for each number and hash.
sub pattern_of {
    my ($text) = @_;
    my $pattern = '';
    for my $part (split(/($hash|$number|\.\.\.|\s+)/, $text =~ s/\s+$//r)) {
        $pattern .= $part =~ /^$hash$/ ? "($hash)" : $part =~ /^$number$/ ? "($number)"
            : $part eq '...' ? '.*' : $part =~ /^\s+$/ ? '\s+' : quotemeta($part);
    }
    return qr/^$pattern\s*$/;
}

# Compares a line of the output with one of the text. Binds each hash of the text to the output's, and the
# other way round.
sub is_same {
    my ($text, $got, $bound) = @_;
    my @theirs = $got =~ pattern_of($text) or return 0;
    my @ours = $text =~ /($hash|$number)/g;
    my %new = %$bound;
    for my $i (0 .. $#ours) {
        my ($a, $b) = ($ours[$i], $theirs[$i]);
        if ($a =~ /^$hash$/) { return 0 if ($new{"text $a"} //= $b) ne $b || ($new{"run $b"} //= $a) ne $a }
        elsif (abs($a - $b) > 1e-3 * abs($a)) { return 0 }
    }
    %$bound = %new;
    return 1;
}

# Returns what differs, or ''.
sub difference {
    my ($page, $expected, $output, $bound) = @_;
    my @lines = split(/\n/, $output);
    my ($at, $skips) = (0, 0);
    for (@$expected) {
        my ($line, $text) = @$_;
        if ($text =~ /^\s*\.\.\.\s*$/) { $skips = 1; next }
        my $found = $at;
        $found++ while $skips && $found < @lines && !is_same($text, $lines[$found], $bound);
        if ($found == @lines || !$skips && !is_same($text, $lines[$found], $bound)) {
            my $got = $skips ? 'no such line in the rest of the output' : $lines[$at] // 'the end';
            return "$page:$line\n    expected $text\n    got      $got";
        }
        ($at, $skips) = ($found + 1, 0);
    }
    return '' if $skips || $at == @lines;
    my $last = @$expected ? ":$expected->[-1][0]" : "";
    return "$page$last\n    expected the end of the output\n    got      $lines[$at]";
}

# ---- the lessons

# Runs a page's commands. Returns the first problem, or ''.
sub run_page {
    my ($page) = @_;
    my (%bound, $log);
    my $name = "$folder/" . ($page =~ s{.*/(.*)\.md}{$1}r) . '.log';
    for my $c (commands_of($page)) {
        my ($output, $status) = run($c->{command});
        open($log, '>>', $name) && print($log "\$ $c->{command}\n$output") && close($log);
        return "$page:$c->{line}: not done after $limit_s s: $c->{command}" if $status == 124;
        my $problem = difference($page, $c->{expected}, $output, \%bound);
        return "$problem\n    all of it: $name" if $problem;
        next if ($status != 0) == $c->{fails};
        return "$page:$c->{line}: exit status $status: $c->{command}\n    its output: $name";
    }
    return '';
}

# Returns 1 if the reader has changed the lesson's stub.
sub is_begun {
    my ($lesson) = @_;
    my $stub = "'dev/lessons/${lesson}_*.c' ':!dev/lessons/*_check.c'";
    return system("git diff --quiet HEAD -- $stub 2>/dev/null") >> 8 == 1;
}

# Checks a lesson's grader. Returns the first problem, or ''; undef: only the solution was checked.
sub run_grader {
    my ($lesson) = @_;
    my ($output, $status) = run("$build/lessons/${lesson}_solution");
    return "the solution of lesson $lesson fails:\n$output" if $status;
    return undef if is_begun($lesson);
    ($output, $status) = run("$build/lessons/$lesson");
    return "dev/lessons/${lesson}_*.c passes: it is no longer the empty stub" if !$status;
    return "the stub of lesson $lesson does not end with a count:\n$output"
        if $output !~ /^lesson \d+: \d+ of \d+ checks passed$/m;
    return '';
}

sub report {
    my ($lesson, $what, $check) = @_;
    my $begin = time;
    my $problem = $check->();
    $what .= ' (skipped your version)' if !defined $problem;
    printf("%-6s lesson %d, %s, %.1f s\n", $problem ? 'FAILED' : 'ok', $lesson, $what, time - $begin);
    print "  $problem\n" if $problem;
    $problem ? $failed++ : $passed++;
}

$| = 1;
system("rm -rf $folder && mkdir -p $folder") == 0 or die "$folder cannot be made\n";
for my $lesson (map { sprintf('%02d', $_) } 1 .. 99) {
    next if $only && $only != $lesson;
    report($lesson, $_, sub { run_page($_) }) for glob("docs/tutorial/$lesson-*.md");
    report($lesson, 'grader', sub { run_grader($lesson) }) if -e "dev/lessons/${lesson}_check.c";
}
die "Lesson $only does not exist; docs/tutorial/ has them\n" if $only && !($passed + $failed);
print "$passed passed, $failed failed\n";
exit($failed || !$passed ? 1 : 0);
