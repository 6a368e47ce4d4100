#!/usr/bin/env perl
# Prints each broken link in the documentation under ROOT, each missing file of docs/ that another file names,
# and each step of a call chain that the code does not have; fails if there are any. Links may name a heading.
# Usage: perl tests/links.pl ROOT
use strict;
use warnings;
use File::Basename;
use File::Find;

my $root = shift // die "Usage: perl tests/links.pl ROOT\n";
chdir $root or die "$root: $!\n";
my (%lines, $found);
my $skipped = qr{^\./(build|third_party|\.git|data)$};
find({ no_chdir => 1, preprocess => sub { grep { "$File::Find::dir/$_" !~ $skipped } @_ }, wanted => sub {
    return unless -f && m{\.(md|c|h|cu|def|sh|pl|py|mk|sbatch)$|/Makefile$|/patch_llmc$};
    open my $file, '<', $_ or die "$_: $!\n";
    $lines{s{^\./}{}r} = [<$file>];
} }, '.');

sub report { print "@_\n"; $found = 1 }

# Returns the headings of a page as GitHub names them: lower case, punctuation removed, blanks to hyphens.
sub anchors {
    my %anchors;
    my $in_code;
    for (@{ $lines{$_[0]} // [] }) {
        $in_code = !$in_code if /^\s*```/;
        next if $in_code || !/^#+ +(.*?)\s*$/;
        my $name = lc($1 =~ s/\[([^]]*)\]\([^)]*\)/$1/gr);
        $name =~ s/[^\w\- ]//g;
        $anchors{ $name =~ s/ /-/gr } = 1;
    }
    return \%anchors;
}
for my $page (sort grep { /\.md$/ && !/^CHANGELOG/ } keys %lines) {
    my ($in_code, $number) = (0, 0);
    for (@{ $lines{$page} }) {
        $number++;
        $in_code = !$in_code if /^\s*```/;
        next if $in_code;
        for my $link (s/`[^`]*`//gr =~ /\]\(([^)\s]+)\)/g) {
            next if $link =~ /^(https?|mailto):/;
            my ($file, $anchor) = $link =~ /^([^#]*)#?(.*)$/;
            my $target = $file eq '' ? $page : dirname($page) . "/$file";
            $target =~ s{^\./}{};
            1 while $target =~ s{[^/]+/\.\./}{};
            my $at = "$page:$number: $link";
            if (!-e $target) { report("$at: no such file") }
            elsif ($anchor ne '' && !anchors($target)->{$anchor}) { report("$at: no such heading") }
        }
    }
}
for my $source (sort grep { !/\.md$|^tests\/test_house\.sh$/ } keys %lines) {
    my $number = 0;
    for (@{ $lines{$source} }) {
        $number++;
        for my $name (m{\b(docs/[\w/.-]+\.(?:md|svg))\b}g) {
            report("$source:$number: $name: no such file") if !-e $name;
        }
    }
}

# Returns the body of a function, without comments, or undef.
sub body {
    my ($file, $name) = @_;
    my $text = join('', map { s{//.*}{}r } @{ $lines{$file} // [] });
    return $text =~ /^\w[^;{}()]*\b$name\([^;{}]*\)\s*\{(.*?)^\}/ms ? $1 : undef;
}
# Blocks ```chain: a title that ends in the number of files, then lines "function file [.member] words".
for my $page (sort grep { /\.md$/ } keys %lines) {
    my ($in_chain, $number, $caller, $title, %files) = (0, 0);
    for (@{ $lines{$page} }) {
        $number++;
        if (/^```/) {
            my $n = grep { $_ ne '-' } keys %files;
            report("$page:$number: the chain has $n files") if $in_chain && $title !~ /: $n files$/;
            ($in_chain, $caller, $title, %files) = (/^```chain$/, undef, '');
            next;
        }
        next if !$in_chain;
        if ($title eq '') { $title = $_; next }
        my ($name, $file, $member) = /^(\w+) +(\S+)(?: +\.(\w+))?/ or undef $caller, next;
        my $body = $file eq '-' ? '' : body($file, $name);
        my $calls = $member ? qr/(?:->|\.)$member\b/ : qr/\b$name\b/;
        my @named = grep { /\b$name\b/ } @{ $lines{$file} // [] };
        $files{$file} = 1;
        if (!defined $body) { report("$page:$number: $file does not define $name") }
        elsif (defined $caller && $caller !~ $calls) { report("$page:$number: $name is not called there") }
        elsif ($member && @named < 2) { report("$page:$number: $file has no table with $name") }
        $caller = $body;
    }
}
exit($found ? 1 : 0);
