# Edits of a known version of llm.c's files, by line. Every edit only inserts lines at the start or end of a
# line of code, and names the lines that must be llm.c's for it to be right: merge.pl carries it over to a
# fork that has those lines, and reports a conflict otherwise.
use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

our (@edits, @L, @C);                   # the edits of a file, its lines, and their code
my ($name, $first, $last, $needs);

sub stop ($message) {
    print STDERR "patch_llmc: $message\n";
    exit 1;
}

sub least ($a, $b) { return $a < $b ? $a : $b }
sub lines_of ($text) { return $text =~ /[^\n]*\n|[^\n]+\z/g }

my $COMMENT = qr{//[^\n]*|/\*.*?\*/}s;
my $STRING = qr{"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+'};

# Returns the lines of C code without comments and white space, except in strings.
sub code_of ($text) {
    $text =~ s{($STRING)|($COMMENT)}{ $1 // $2 =~ s/[^\n]//gr }ge;
    return map { s{($STRING)|\s+}{ $1 // '' }ger } lines_of($text);
}

sub edit_file ($file, $text) {
    ($name, @L) = ($file, lines_of($text));
    @C = code_of($text);
    @edits = ();
    in('');
}

# What the next edits do, or a port by hand in their place.
sub hook ($text) { $needs = $text }

# The next edits are in this function ('': the file).
sub in ($function, $text = $needs) {
    ($needs, $first, $last) = ($text, 0, $#L);
    return if $function eq '';
    $first = one(qr/^\w[^;]*\b$function\s*\(/);
    $last = one(qr/^\}/, $first);
}

sub all ($pattern, $from = $first, $to = $last) { return grep { $L[$_] =~ $pattern } $from .. $to }

# Returns the first line that matches. Every known version has one.
sub one ($pattern, $from = $first, $to = $last) {
    my ($line) = all($pattern, $from, $to);
    return $line // die "$name, from line " . ($from + 1)
        . ": llm.c has no $pattern; a known version is wrong\n";
}

# Edits name a line by its number, or by a pattern: the first line that matches.
sub place ($where, $from = $first) { return ref $where ? one($where, $from) : $where }

# Returns the last line of the block or statement that begins on a line.
sub block_end ($line) {
    my ($indent) = $L[$line] =~ /^(\s*)/;
    return one(qr/^$indent\}/, $line + 1);
}
sub statement_start ($line) {
    $line-- while $L[$line - 1] =~ /,\s*$/;
    return $line;
}
sub statement_end ($line) { return one(qr/;\s*(?:\/\/.*)?$/, $line, $#L) }

sub indented ($line, @code) {
    my ($indent) = $L[$line] =~ /^([ \t]*)/;
    return join '', map { $_ eq '' ? "\n" : "$indent$_\n" } map { split /\n/ } @code;
}
sub is_code ($line) { return $C[$line] ne '' }
sub add ($from, $to, @pieces) {
    $from++ while $from < $to && !is_code($from);
    $to-- while $to > $from && !is_code($to);
    $_->{line} //= $_->{side} eq 'before' ? $from : $to for @pieces;
    push @edits, { from => $from, to => $to, pieces => \@pieces, needs => $needs, order => scalar @edits };
}
sub guarded ($code) { return "#ifdef LLMC_ZERO\n$code#endif\n" }
sub before ($where, @code) {
    my $line = place($where);
    add($line, $line, { side => 'before', code => guarded(indented($line, @code)) });
}
sub after ($where, @code) {
    my $line = place($where);
    add($line, $line, { side => 'after', code => guarded(indented(statement_start($line), @code)) });
}

# These lines must be llm.c's, because the plugin does their work or an edit copies from them.
sub only_llmc ($from, $to) { add($from, $to) if $from <= $to }

# Moves the lines into an #else, below @code, or leaves them out of a build with the plugin.
sub instead ($from, $to = $from, @code) {
    $from = place($from);
    $to = ref $to ? one($to, $from) : $to // $from;
    my $start = @code ? "#ifdef LLMC_ZERO\n" . indented($from, @code) . "#else\n" : "#ifndef LLMC_ZERO\n";
    add($from, $to, { side => 'before', code => $start }, { side => 'after', code => "#endif\n" });
}
sub is_replaced ($line) {
    return scalar grep { @{ $_->{pieces} } == 2 && $_->{from} <= $line && $line <= $_->{to} } @edits;
}

# Like instead(), for several lines, each with its new code; those with nothing between share one #ifdef.
sub instead_each (%new) {
    my @groups;
    for my $line (sort { $a <=> $b } keys %new) {
        if (@groups && !grep { is_code($_) } $groups[-1][-1] + 1 .. $line - 1) {
            push @{ $groups[-1] }, $line;
        } else {
            push @groups, [$line];
        }
    }
    for my $group (@groups) {
        my @code = grep { $_ ne '' } map { $new{$_} } @$group;
        instead(@$group[0, -1], @code);
    }
}

# Replaces each of these lines by what the function makes of it.
sub rewrite ($change, @lines) {
    my %new = map { $_ => $L[$_] =~ s/^\s+|\n//gr } @lines;
    $change->() for values %new;
    instead_each(%new);
}

# Returns the text with these edits, the new line number and the hook of each, and for each new line that
# of the text. $at gives a line's place in the text, if it is not the known version.
sub with_edits ($lines, $edits, $at = undef) {
    my (%before, %after);
    for my $edit (@$edits) {
        for my $piece (@{ $edit->{pieces} }) {
            my $line = $at ? $at->[$piece->{line}] : $piece->{line};
            my $new = [$piece->{code}, $piece == $edit->{pieces}[0] ? $edit->{needs} : ''];
            if ($piece->{side} eq 'before') { push @{ $before{$line} }, $new }
            elsif ($piece->{code} eq "#endif\n") { unshift @{ $after{$line} }, $new }
            else { push @{ $after{$line} }, $new }
        }
    }
    my ($text, @report, @origin) = ('');
    for my $line (0 .. $#$lines) {
        for my $new (@{ $before{$line} || [] }, [$lines->[$line], ''], @{ $after{$line} || [] }) {
            push @report, [@origin + 1, $new->[1]] if $new->[1];
            $text .= $new->[0];
            push @origin, ($line + 1) x (($new->[0] =~ tr/\n//) || 1);
        }
    }
    return ($text, \@report, \@origin);
}

1;
