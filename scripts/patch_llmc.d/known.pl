# Compares code that an edit replaces with llm.c's versions of that code. known_forms has a digest of every
# statement of each version. A digest covers the statement's tokens, with numbers in place of the names of
# locals, so only comments, white space and these names may differ.
use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

our ($HERE, $learn);
my %forms;              # place -> [ { label, digests } ]

sub read_forms {
    my $path = "$HERE/known_forms";
    open my $in, '<', $path or stop("$path: $!");
    my $form;
    while (<$in>) {
        next if /^#/ || !/\S/;
        if (/^(\S+) (.+)$/) {
            $form = { label => $2, digests => [] };
            push @{ $forms{$1} }, $form;
        } else {
            push @{ $form->{digests} }, split;
        }
    }
    close $in or stop("$path: $!");
}

# FNV-1a of 64 bits, folded to 8 hexadecimal digits. (Digest::MD5 is not in perl-base.)
sub digest ($text) {
    use integer;
    my $hash = -3750763034362895579;
    for my $byte (unpack 'C*', $text) {
        $hash ^= $byte;
        $hash *= 1099511628211;
    }
    return sprintf '%08x', ($hash ^ ($hash >> 32)) & 0xffffffff;
}

my $TYPE = qr/^(?:float|floatX|double|int|unsigned|long|size_t|ptrdiff_t|bool|char|ShardInfo|u?int\d+_t)$/;

# Returns the names that these tokens declare: a TYPE, optionally * or const, then a name.
sub declared (@tokens) {
    my %names;
    for my $i (0 .. $#tokens) {
        next if $tokens[$i]{text} !~ $TYPE;
        my $name = $i + 1;
        $name++ while $name < $#tokens && $tokens[$name]{text} =~ /^(?:\*|const)$/;
        next if $name >= $#tokens;
        my $text = $tokens[$name]{text};
        next if $text !~ /^[A-Za-z_]\w*$/ || $text =~ $TYPE;
        $names{$text} = 1 if $tokens[$name + 1]{text} =~ /^[=;,)\[]$/;
    }
    return \%names;
}

# Two conditions may have different tensor numbers than llm.c's, because decayed() and outside_by_number()
# check them.
sub normal ($statement) {
    $statement =~ s/\( (\S+) == \d+(?: \|\| \1 == \d+)* \) \? weight_decay/DECAYED ? weight_decay/;
    $statement =~ s/\( (\S+) < \d+ \|\| \1 > \d+ \)/OUTSIDE/;
    return $statement;
}

# Returns the statements of a range, as { at, digest, tokens }.
sub normal_statements ($f, $range) {
    my @statements = statements($f, $range);
    @$_ = grep { $_->{text} !~ /^#\s*pragma\b/ } @$_ for @statements;     # OpenMP does not change the result
    @statements = grep { @$_ } @statements;
    my $locals = declared(map { @$_ } @statements);
    my ($last, %number) = (0);
    my @result;
    for my $tokens (@statements) {
        my @words = map { $_->{text} } @$tokens;
        for my $i (0 .. $#words) {
            my $is_field = $i > 0 && $words[$i - 1] =~ /^(?:->|\.)$/;
            next if $is_field || !$locals->{ $words[$i] };
            $number{ $words[$i] } //= ++$last;
            $words[$i] = "\$$number{ $words[$i] }";
        }
        push @result, { at => $tokens->[0]{at}, digest => digest(normal("@words")), tokens => $tokens };
    }
    return @result;
}

# Returns how many leading statements equal those of a form.
sub in_common ($statements, $digests) {
    my $n = 0;
    $n++ while $n < @$statements && $n < @$digests && $statements->[$n]{digest} eq $digests->[$n];
    return $n;
}

# Returns the range if it equals one of llm.c's versions. Otherwise prints the first statement that differs
# from the nearest version, and ends the script. $effect describes what the patched trainer would do instead.
sub known ($f, $range, $place, $effect) {
    my @statements = normal_statements($f, $range);
    if ($learn) {
        print join(' ', $place, map { $_->{digest} } @statements), "\n";
        return $range;
    }
    read_forms() if !%forms;
    my ($nearest, $most) = (undef, -1);
    for my $form (@{ $forms{$place} || [] }) {
        my $n = in_common(\@statements, $form->{digests});
        return $range if $n == @statements && $n == @{ $form->{digests} };
        ($nearest, $most) = ($form, $n) if $n > $most;
    }
    defined $nearest or stop("known_forms has no entry for $place");
    differs($f, $range, $effect, $nearest, $statements[$most]);
}

sub nothing_but ($work) { return "The plugin would $work, and nothing else would be done" }

sub differs ($f, $range, $effect, $nearest, $first) {
    my $where = $range->{function} ? "in $range->{function}(), " : '';
    my $found = $first ? '"' . shown($f, $first->{tokens}) . '"' : 'the end';
    refuse($f, $first ? $first->{at} : $range->{to},
           "${where}$found is not llm.c's code (nearest: $nearest->{label}). $effect");
}

sub shown ($f, $tokens) {
    my $last = $tokens->[-1];
    my $text = text_of($f, { from => $tokens->[0]{at}, to => $last->{at} + length $last->{text} });
    $text = join ' ', split ' ', $text;
    return length $text > 100 ? substr($text, 0, 97) . '...' : $text;
}

1;
