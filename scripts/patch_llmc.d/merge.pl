# Finds the version of llm.c that a fork's file comes from, and merges the file with that version's edits.
use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';
use File::Temp qw(tempdir);

our ($HERE, $dir, @edits, @L, @C, %removed);
my $temporary = tempdir('patch_llmc.XXXXXX', TMPDIR => 1, CLEANUP => 1);

# Returns the git hashes of llm.c's versions of a file, oldest first.
sub known_versions ($name) { return map { split } read_whole("$HERE/versions") =~ /^\Q$name\E (.*)/mg }

# Returns how many lines of code differ between a version and the fork's file.
sub differences ($text, $fork) {
    my $n = 0;
    $n += $_->[1] + $_->[3] for hunks([grep { $_ ne '' } code_of($text)], [grep { $_ ne '' } code_of($fork)]);
    return $n;
}

# Returns the text of the newest version in the fork's history. If there is none, it returns the version with
# the fewest differences among those that git has.
sub base_of ($name, $fork) {
    my @known = known_versions($name);
    my %known = map { $known[$_] => $_ } 0 .. $#known;
    my $short = sub { substr $_[0], 0, length $known[0] };
    write_whole("$temporary/fork", $fork, 0644);
    my $hash = git('hash-object', '--no-filters', "$temporary/fork") // '';
    return $fork if defined $known{ $short->($hash) };
    my $log = git('log', '--format=', '--raw', '--no-abbrev', '--no-renames', '--', $name) // '';
    my ($newest) = sort { $known{$b} <=> $known{$a} } grep { defined $known{$_} }
        map { $short->($_) } $log =~ /\b[0-9a-f]{40}\b/g;
    return git('cat-file', 'blob', $newest) if defined $newest;
    my @texts = grep { defined } map { git('cat-file', 'blob', $_) } @known;
    @texts or stop("$dir: its history has no version of llm.c's $name since June 2024 (train_gpt2.cu: "
                   . "2024-07-18). Bring llm.c's history:\n    git -C $dir init -q && git -C $dir fetch "
                   . "https://github.com/karpathy/llm.c master\nThe version with the fewest differences is "
                   . 'then used');
    my ($nearest) = sort { $a->[0] <=> $b->[0] } map { [differences($_, $fork), $_] } reverse @texts;
    return $nearest->[1];
}

# Returns the differences of two lists of lines, as git sees them: [from, number, other from, other number].
sub hunks ($one, $other) {
    write_whole("$temporary/one", join('', map { "$_\n" } @$one), 0644);
    write_whole("$temporary/other", join('', map { "$_\n" } @$other), 0644);
    my $diff = git_output(qw(diff --no-index --no-ext-diff --no-color --histogram -U0),
                          "$temporary/one", "$temporary/other");
    my @hunks;
    while ($diff =~ /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@/mg) {
        my ($from, $n, $other_from, $m) = ($1, $2 // 1, $3, $4 // 1);
        push @hunks, [$from - ($n > 0), $n, $other_from - ($m > 0), $m];
    }
    return @hunks;
}

# Returns the merged text of a file, what with_edits() says of it, and its conflicts. An edit is carried over
# if the fork has its lines, with nothing between them; comments and white space may differ. git then merges
# the other edits, which leaves its conflict markers. @edits, @L and @C are those of the known version.
sub merged ($name, $fork) {
    my @F = lines_of($fork);
    my @code = code_of($fork);
    my @ours = grep { $C[$_] ne '' } 0 .. $#C;
    my @theirs = grep { $code[$_] ne '' } 0 .. $#code;
    my ($i, $j, @at) = (0, 0);                          # @at: for each of our lines, its place in the fork
    for my $hunk (hunks([@C[@ours]], [@code[@theirs]]), [scalar @ours, 0, 0, 0]) {
        $at[ $ours[$i++] ] = $theirs[$j++] while $i < $hunk->[0];
        $i += $hunk->[1];
        $j += $hunk->[3];
    }
    # git may see a line as removed and added, for example if two lines are exchanged
    my (%in_ours, %in_theirs);
    push @{ $in_ours{ $C[$_] } }, $_ for @ours;
    push @{ $in_theirs{ $code[$_] } }, $_ for @theirs;
    for my $line (grep { !defined $at[$_] && @{ $in_ours{ $C[$_] } } == 1 } @ours) {
        my $found = $in_theirs{ $C[$line] } || [];
        $at[$line] = $found->[0] if @$found == 1;
    }
    my $fits = sub ($edit) {
        my @lines = map { $at[$_] // return 0 } grep { $C[$_] ne '' } $edit->{from} .. $edit->{to};
        return @lines == grep { $code[$_] ne '' } $lines[0] .. $lines[-1];
    };
    my (@carried, @left);
    for my $edit (@edits) { $fits->($edit) ? push @carried, $edit : push @left, $edit }
    my ($text, @places) = with_edits(\@F, \@carried, \@at);
    $text =~ s/\r?\n/\r\n/g if $fork =~ /\r\n/ && $fork !~ /[^\r]\n/;
    my @conflicts = map { conflict($name, $_, \@F, \@code, \@at) } sort { $a->{from} <=> $b->{from} } @left;
    $text = left_to_git($text, \@carried, \@left) if @left;
    my %ours = map { $_ => 1 } (grep { defined } @at), map { @{ $_->{own} } } @conflicts;
    return ($text, @places, @conflicts, own_uses($name, \@F, grep { !$ours{$_} } @theirs));
}

# The fork's own lines that use the memory which the plugin holds do not compile: lines in a row are a
# conflict.
sub own_uses ($name, $F, @own) {
    my @uses = $removed{$name} ? grep { $F->[$_] =~ $removed{$name} } @own : ();
    my @groups;
    for my $line (@uses) {
        if (@groups && $line <= $groups[-1][-1] + 3) { push @{ $groups[-1] }, $line }
        else { push @groups, [$line] }
    }
    return map { { name => $name, line => $_->[0] + 1, fork => [map { $F->[$_] =~ s/\s*\n//r } @$_],
        ours => '', lost => [],
                   needs => 'GPT2 no longer has this memory, which the plugin holds: zero_param(), '
                       . 'zero_grad(), zero_get() and zero_set() give access to it' } } @groups;
}

# A mark on the lines of an edit makes them differ, so that git cannot merge them silently.
sub left_to_git ($fork, $carried, $left) {
    my @marked = @L;
    for my $edit (@$left) { $marked[$_] = "\1$L[$_]" for $edit->{from} .. $edit->{to} }
    write_whole("$temporary/fork", $fork, 0644);
    my ($base) = with_edits(\@L, $carried);
    my ($zero) = with_edits(\@marked, [sort { $a->{order} <=> $b->{order} } @$carried, @$left]);
    write_whole("$temporary/base", $base, 0644);
    write_whole("$temporary/zero", $zero, 0644);
    my @labels = map { ('-L', $_) } 'the fork', 'llm.c', 'llm.c with ZeRO';
    return git_output('merge-file', '-p', '--diff3', @labels,
        map { "$temporary/$_" } qw(fork base zero)) =~ tr/\1//dr;
}

# Returns the place of a conflict in the fork, its lines there, and the edit.
sub conflict ($name, $edit, $F, $code, $at) {
    my ($above, $below) = ($edit->{from}, $edit->{to});
    $above-- while $above >= 0 && !defined $at->[$above];
    $below++ while $below <= $#L && !defined $at->[$below];
    my $from = $above == $edit->{from} ? $at->[$above] : $above < 0 ? 0 : $at->[$above] + 1;
    my $to = $below == $edit->{to} ? $at->[$below] : $below > $#L ? $#$F : $at->[$below] - 1;
    my %known = map { $_ => 1 } grep { defined } @$at[$edit->{from} .. $edit->{to}];
    my @own = grep { $code->[$_] ne '' && !$known{$_} } $from .. $to;
    return { name => $name, line => ($own[0] // $from) + 1, fork => [map { $F->[$_] =~ s/\s*\n//r } @own],
             own => \@own, ours => join('', map { $_->{code} } @{ $edit->{pieces} }), needs => $edit->{needs},
             lost => [map { $L[$_] }
                      grep { $C[$_] ne '' && !defined $at->[$_] } $edit->{from} .. $edit->{to}] };
}

sub shown ($title, $most, @lines) {
    return '' if !@lines;
    my $more = @lines > $most ? '        ... (' . (@lines - $most) . " more lines)\n" : '';
    splice @lines, $most if $more;
    return "    $title\n" . join('', map { s/\n*\z//r =~ s/^/        /r . "\n" } @lines) . $more;
}

sub conflict_text ($c) {
    my @ours = lines_of($c->{ours} =~ s/(#else\n|#ifndef LLMC_ZERO\n)/$1        (llm.c's lines)\n/r);
    return "$c->{name}:$c->{line}: conflict: $c->{needs}\n"
        . shown('the fork has:', 12, @{ $c->{fork} })
        . shown('in place of llm.c\'s:', 6, @{ $c->{lost} })
        . shown('ZeRO adds:', 8, @ours);
}

1;
